/* The DX cooling plant with airside economizer as an FMI 2.0 co-simulation FMU.
 *
 * The formulas are those of joulie_lab.simulation.dx_plant, line by line; tests hold the two together. The generated header
 * dx_plant_model.h gives the GUID and, by value reference (VR_...), every variable's name, kind, range and start value. C99, no dependencies but the FMI 2.0 headers beside this file.
 *
 * SPDX-License-Identifier: Apache-2.0
 */
#include <math.h>
#include <string.h>

#include "fmi2Functions.h"
#include "dx_plant_model.h"

#define AIR_HEAT_CAPACITY_J_PER_KG_K 1006.0

typedef enum { INSTANTIATED, INITIALIZING, STEPPING, TERMINATED, FAILED } Phase;

typedef struct {
    fmi2Real value[N_VARIABLES]; /* inputs, parameters and outputs, by value reference */
    fmi2Real room_k;
    fmi2Real time_s;
    Phase phase;
} State;

typedef struct {
    State state;
    fmi2CallbackFunctions callbacks;
    char name[128];
} Plant;

/* ---- physics ---------------------------------------------------------------------------------------------------- */

static double outdoor_air_share(const double *v) {
    double opening = (v[VR_ECONOMIZER_CLOSED_K] - v[VR_T_OUTDOOR])
                   / (v[VR_ECONOMIZER_CLOSED_K] - v[VR_ECONOMIZER_OPEN_K]);
    return fmax(v[VR_MINIMUM_OUTDOOR_AIR], fmin(1.0, opening));
}

static double room_after(const double *v, double room_k, double dt_s) {
    double volume_m3 = v[VR_ROOM_LENGTH_M] * v[VR_ROOM_WIDTH_M] * v[VR_ROOM_HEIGHT_M];
    double capacity = v[VR_AIR_DENSITY_KG_PER_M3] * volume_m3 * AIR_HEAT_CAPACITY_J_PER_KG_K
                    * v[VR_THERMAL_MASS_FACTOR];
    double conductance = fmax(v[VR_AIR_FLOW_KG_PER_S] * AIR_HEAT_CAPACITY_J_PER_KG_K * outdoor_air_share(v), 1e-9);
    double equilibrium_k = v[VR_T_OUTDOOR] + v[VR_Q_IT] / conductance;
    double way = -expm1(-conductance * dt_s / capacity);
    return fmin(room_k, room_k + (equilibrium_k - room_k) * way);
}

static void compute_outputs(State *s) {
    double *v = s->value;
    double drop_k = fmax(0.0, outdoor_air_share(v) * (s->room_k - v[VR_T_OUTDOOR]));
    double free_w = v[VR_AIR_FLOW_KG_PER_S] * AIR_HEAT_CAPACITY_J_PER_KG_K * drop_k;
    double mechanical_w = fmax(0.0, v[VR_Q_IT] - free_w);

    double loss = v[VR_COP_SLOPE_PER_K] * fmax(0.0, v[VR_T_OUTDOOR] - v[VR_RATED_OUTDOOR_K]);
    double part_load = fmin(1.0, mechanical_w / v[VR_COIL_CAPACITY_W]);
    double gain = 1.0 + v[VR_PART_LOAD_GAIN] * (1.0 - part_load);
    double cop = fmax(v[VR_MINIMUM_COP], v[VR_RATED_COP] * (1.0 - loss) * gain);
    double compressor_w = v[VR_T_OUTDOOR] >= v[VR_ECONOMIZER_OPEN_K] ? mechanical_w / cop : 0.0;

    double speed = fmin(1.0, fmax(v[VR_MINIMUM_FAN_SPEED], v[VR_Q_IT] / v[VR_COIL_CAPACITY_W]));
    double full_fan_w = v[VR_AIR_FLOW_KG_PER_S] / v[VR_AIR_DENSITY_KG_PER_M3] * v[VR_FAN_PRESSURE_PA]
                      / v[VR_FAN_EFFICIENCY];
    double cooling_w = full_fan_w * speed * speed * speed + compressor_w;

    v[VR_P_COOLING] = cooling_w;
    v[VR_T_INDOOR] = s->room_k;
    v[VR_COP] = (free_w + mechanical_w) / cooling_w;
}

/* The first variable whose value cannot be used, or NULL. */
static const char *problem(const double *v) {
    for (int i = 0; i < N_VARIABLES; i++) {
        if (KIND[i] == OUTPUT) continue;
        if (!isfinite(v[i]) || v[i] < 0.0 || v[i] > MAXIMUM[i]) return NAME[i];
        if (v[i] == 0.0 && !MAY_BE_ZERO[i]) return NAME[i];
    }
    if (v[VR_ECONOMIZER_CLOSED_K] <= v[VR_ECONOMIZER_OPEN_K]) return NAME[VR_ECONOMIZER_CLOSED_K];
    return NULL;
}

/* ---- FMI 2.0 ---------------------------------------------------------------------------------------------------- */

static fmi2Status fail(Plant *p, const char *what, const char *which) {
    p->state.phase = FAILED;
    if (p->callbacks.logger) {
        p->callbacks.logger(p->callbacks.componentEnvironment, p->name, fmi2Error, "logStatusError", "%s: %s", what,
                            which);
    }
    return fmi2Error;
}

static void reset(State *s) {
    memcpy(s->value, START, sizeof START);
    s->time_s = 0.0;
    s->phase = INSTANTIATED;
}

const char *fmi2GetTypesPlatform(void) { return fmi2TypesPlatform; }
const char *fmi2GetVersion(void) { return fmi2Version; }

fmi2Status fmi2SetDebugLogging(fmi2Component c, fmi2Boolean on, size_t n, const fmi2String categories[]) {
    (void)c; (void)on; (void)n; (void)categories;
    return fmi2OK; /* only errors are logged, and those always */
}

fmi2Component fmi2Instantiate(fmi2String name, fmi2Type type, fmi2String guid, fmi2String resources,
                              const fmi2CallbackFunctions *callbacks, fmi2Boolean visible, fmi2Boolean logging_on) {
    (void)resources; (void)visible; (void)logging_on;
    if (!callbacks || !callbacks->allocateMemory || !callbacks->freeMemory) return NULL;
    if (type != fmi2CoSimulation || !guid || strcmp(guid, MODEL_GUID) != 0) {
        if (callbacks->logger) {
            callbacks->logger(callbacks->componentEnvironment, name, fmi2Error, "logStatusError", "%s",
                              type != fmi2CoSimulation ? "only co-simulation is provided" : "the GUID does not match");
        }
        return NULL;
    }
    Plant *p = callbacks->allocateMemory(1, sizeof *p);
    if (!p) return NULL;
    p->callbacks = *callbacks;
    strncpy(p->name, name ? name : "", sizeof p->name - 1);
    reset(&p->state);
    return p;
}

void fmi2FreeInstance(fmi2Component c) {
    if (c) ((Plant *)c)->callbacks.freeMemory(c);
}

fmi2Status fmi2SetupExperiment(fmi2Component c, fmi2Boolean tolerance_defined, fmi2Real tolerance, fmi2Real start_s,
                               fmi2Boolean stop_defined, fmi2Real stop_s) {
    (void)tolerance_defined; (void)tolerance; (void)stop_defined; (void)stop_s;
    Plant *p = c;
    if (p->state.phase != INSTANTIATED) return fail(p, "not allowed now", "fmi2SetupExperiment");
    p->state.time_s = start_s;
    return fmi2OK;
}

fmi2Status fmi2EnterInitializationMode(fmi2Component c) {
    Plant *p = c;
    if (p->state.phase != INSTANTIATED) return fail(p, "not allowed now", "fmi2EnterInitializationMode");
    p->state.phase = INITIALIZING;
    return fmi2OK;
}

fmi2Status fmi2ExitInitializationMode(fmi2Component c) {
    Plant *p = c;
    if (p->state.phase != INITIALIZING) return fail(p, "not allowed now", "fmi2ExitInitializationMode");
    const char *bad = problem(p->state.value);
    if (bad) return fail(p, "not finite or out of range", bad);
    p->state.room_k = p->state.value[VR_START_K];
    p->state.phase = STEPPING;
    return fmi2OK;
}

fmi2Status fmi2Terminate(fmi2Component c) {
    Plant *p = c;
    if (p->state.phase != STEPPING) return fail(p, "not allowed now", "fmi2Terminate");
    p->state.phase = TERMINATED;
    return fmi2OK;
}

fmi2Status fmi2Reset(fmi2Component c) {
    reset(&((Plant *)c)->state);
    return fmi2OK;
}

fmi2Status fmi2GetReal(fmi2Component c, const fmi2ValueReference vr[], size_t n, fmi2Real value[]) {
    Plant *p = c;
    if (p->state.phase <= INITIALIZING) p->state.room_k = p->state.value[VR_START_K];
    compute_outputs(&p->state);
    for (size_t i = 0; i < n; i++) {
        if (vr[i] >= N_VARIABLES) return fail(p, "fmi2GetReal", "unknown value reference");
        value[i] = p->state.value[vr[i]];
    }
    return fmi2OK;
}

fmi2Status fmi2SetReal(fmi2Component c, const fmi2ValueReference vr[], size_t n, const fmi2Real value[]) {
    Plant *p = c;
    for (size_t i = 0; i < n; i++) {
        if (vr[i] >= N_VARIABLES) return fail(p, "fmi2SetReal", "unknown value reference");
        if (KIND[vr[i]] == OUTPUT) return fail(p, "an output cannot be set", NAME[vr[i]]);
        if (KIND[vr[i]] == FIXED && p->state.phase > INITIALIZING) {
            return fail(p, "a fixed parameter cannot be set after initialization", NAME[vr[i]]);
        }
        p->state.value[vr[i]] = value[i];
    }
    return fmi2OK;
}

fmi2Status fmi2DoStep(fmi2Component c, fmi2Real time_s, fmi2Real dt_s, fmi2Boolean no_set_state_before) {
    (void)no_set_state_before;
    Plant *p = c;
    if (p->state.phase != STEPPING) return fail(p, "not allowed now", "fmi2DoStep");
    if (!(isfinite(dt_s) && dt_s > 0.0)) return fail(p, "must be above zero", "communicationStepSize");
    const char *bad = problem(p->state.value);
    if (bad) return fail(p, "not finite or out of range", bad);
    p->state.room_k = room_after(p->state.value, p->state.room_k, dt_s);
    p->state.time_s = time_s + dt_s;
    return fmi2OK;
}

fmi2Status fmi2GetFMUstate(fmi2Component c, fmi2FMUstate *saved) {
    Plant *p = c;
    if (!*saved) *saved = p->callbacks.allocateMemory(1, sizeof(State));
    if (!*saved) return fail(p, "fmi2GetFMUstate", "out of memory");
    memcpy(*saved, &p->state, sizeof(State));
    return fmi2OK;
}

fmi2Status fmi2SetFMUstate(fmi2Component c, fmi2FMUstate saved) {
    memcpy(&((Plant *)c)->state, saved, sizeof(State));
    return fmi2OK;
}

fmi2Status fmi2FreeFMUstate(fmi2Component c, fmi2FMUstate *saved) {
    if (*saved) ((Plant *)c)->callbacks.freeMemory(*saved);
    *saved = NULL;
    return fmi2OK;
}

fmi2Status fmi2SerializedFMUstateSize(fmi2Component c, fmi2FMUstate saved, size_t *size) {
    (void)c; (void)saved;
    *size = sizeof(State);
    return fmi2OK;
}

fmi2Status fmi2SerializeFMUstate(fmi2Component c, fmi2FMUstate saved, fmi2Byte bytes[], size_t size) {
    if (size < sizeof(State)) return fail(c, "fmi2SerializeFMUstate", "the buffer is too small");
    memcpy(bytes, saved, sizeof(State));
    return fmi2OK;
}

fmi2Status fmi2DeSerializeFMUstate(fmi2Component c, const fmi2Byte bytes[], size_t size, fmi2FMUstate *saved) {
    Plant *p = c;
    if (size != sizeof(State)) return fail(p, "fmi2DeSerializeFMUstate", "not a state of this FMU");
    if (!*saved) *saved = p->callbacks.allocateMemory(1, sizeof(State));
    if (!*saved) return fail(p, "fmi2DeSerializeFMUstate", "out of memory");
    memcpy(*saved, bytes, sizeof(State));
    return fmi2OK;
}

/* ---- what this model has none of -------------------------------------------------------------------------------- */

#define ONLY_REALS(NAME_, CONST_VALUE)                                                                              \
    fmi2Status NAME_(fmi2Component c, const fmi2ValueReference vr[], size_t n, CONST_VALUE value[]) {                \
        (void)vr; (void)value;                                                                                      \
        return n == 0 ? fmi2OK : fail(c, #NAME_, "the model has only Real variables");                              \
    }
ONLY_REALS(fmi2GetInteger, fmi2Integer)
ONLY_REALS(fmi2GetBoolean, fmi2Boolean)
ONLY_REALS(fmi2GetString, fmi2String)
ONLY_REALS(fmi2SetInteger, const fmi2Integer)
ONLY_REALS(fmi2SetBoolean, const fmi2Boolean)
ONLY_REALS(fmi2SetString, const fmi2String)

fmi2Status fmi2GetDirectionalDerivative(fmi2Component c, const fmi2ValueReference unknown[], size_t n_unknown,
                                        const fmi2ValueReference known[], size_t n_known, const fmi2Real seed[],
                                        fmi2Real sensitivity[]) {
    (void)unknown; (void)n_unknown; (void)known; (void)n_known; (void)seed; (void)sensitivity;
    return fail(c, "not provided", "fmi2GetDirectionalDerivative");
}

fmi2Status fmi2SetRealInputDerivatives(fmi2Component c, const fmi2ValueReference vr[], size_t n,
                                       const fmi2Integer order[], const fmi2Real value[]) {
    (void)vr; (void)n; (void)order; (void)value;
    return fail(c, "not provided", "fmi2SetRealInputDerivatives");
}

fmi2Status fmi2GetRealOutputDerivatives(fmi2Component c, const fmi2ValueReference vr[], size_t n,
                                        const fmi2Integer order[], fmi2Real value[]) {
    (void)vr; (void)n; (void)order; (void)value;
    return fail(c, "not provided", "fmi2GetRealOutputDerivatives");
}

fmi2Status fmi2CancelStep(fmi2Component c) { return fail(c, "steps are synchronous", "fmi2CancelStep"); }

fmi2Status fmi2GetStatus(fmi2Component c, const fmi2StatusKind kind, fmi2Status *value) {
    (void)c; (void)kind; (void)value;
    return fmi2Discard; /* steps are synchronous: there is never a pending status */
}

fmi2Status fmi2GetIntegerStatus(fmi2Component c, const fmi2StatusKind kind, fmi2Integer *value) {
    (void)c; (void)kind; (void)value;
    return fmi2Discard;
}

fmi2Status fmi2GetStringStatus(fmi2Component c, const fmi2StatusKind kind, fmi2String *value) {
    (void)c; (void)kind; (void)value;
    return fmi2Discard;
}

fmi2Status fmi2GetRealStatus(fmi2Component c, const fmi2StatusKind kind, fmi2Real *value) {
    if (kind != fmi2LastSuccessfulTime) return fmi2Discard;
    *value = ((Plant *)c)->state.time_s;
    return fmi2OK;
}

fmi2Status fmi2GetBooleanStatus(fmi2Component c, const fmi2StatusKind kind, fmi2Boolean *value) {
    (void)c;
    if (kind != fmi2Terminated) return fmi2Discard;
    *value = fmi2False;
    return fmi2OK;
}

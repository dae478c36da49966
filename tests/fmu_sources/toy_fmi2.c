/* A small FMI 2.0 co-simulation FMU that misbehaves as macros say. P_cooling = 0.3*Q_IT*gain, T_indoor = T_outdoor, COP = 3.
 *
 * FAIL_AT, FAIL_STATUS  doStep number FAIL_AT returns FAIL_STATUS, after a log message
 * NAN_AT                from doStep number NAN_AT on, P_cooling is NaN
 * PARTIAL               doStep does half of what is asked, returns fmi2Discard and tells how far it got
 * ENDS                  doStep returns fmi2Discard and says that the simulation is over
 * FIXED_STEP            any other communication step is an error
 * FLOOD                 doStep logs this many messages
 * JOURNAL               file that names of calls are appended to
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>

#include "fmi2Functions.h"

#ifndef FAIL_AT
#define FAIL_AT -1
#endif
#ifndef FAIL_STATUS
#define FAIL_STATUS fmi2Error
#endif
#ifndef NAN_AT
#define NAN_AT 1000000
#endif
#ifndef FLOOD
#define FLOOD 0
#endif

enum { Q_IT, T_OUTDOOR, P_COOLING, T_INDOOR, COP, GAIN, N };

typedef struct {
    double v[N];
    double time;
    int steps;
    const fmi2CallbackFunctions *callbacks;
} Toy;

static void journal(const char *what) {
#ifdef JOURNAL
    FILE *f = fopen(JOURNAL, "a");
    if (f) { fprintf(f, "%s\n", what); fclose(f); }
#else
    (void)what;
#endif
}

const char *fmi2GetTypesPlatform(void) { return fmi2TypesPlatform; }
const char *fmi2GetVersion(void) { return fmi2Version; }
fmi2Component fmi2Instantiate(fmi2String name, fmi2Type type, fmi2String guid, fmi2String resources,
                              const fmi2CallbackFunctions *callbacks, fmi2Boolean visible, fmi2Boolean logging) {
    (void)name; (void)type; (void)guid; (void)resources; (void)visible; (void)logging;
#ifdef NO_INSTANCE
    callbacks->logger(callbacks->componentEnvironment, "toy", fmi2Error, "", "license number %d has expired", 7);
    return NULL;
#endif
    Toy *toy = calloc(1, sizeof *toy);
    toy->callbacks = callbacks;
    toy->v[GAIN] = 1.0;
    journal("instantiate");
    return toy;
}
void fmi2FreeInstance(fmi2Component c) { journal("free"); free(c); }
fmi2Status fmi2SetupExperiment(fmi2Component c, fmi2Boolean a, fmi2Real b, fmi2Real t, fmi2Boolean d, fmi2Real e) {
    (void)a; (void)b; (void)d; (void)e;
    ((Toy *)c)->time = t;
    return fmi2OK;
}
fmi2Status fmi2EnterInitializationMode(fmi2Component c) { (void)c; return fmi2OK; }
fmi2Status fmi2ExitInitializationMode(fmi2Component c) { (void)c; return fmi2OK; }
fmi2Status fmi2Terminate(fmi2Component c) { (void)c; journal("terminate"); return fmi2OK; }
fmi2Status fmi2SetReal(fmi2Component c, const fmi2ValueReference vr[], size_t n, const fmi2Real value[]) {
    for (size_t i = 0; i < n; i++) ((Toy *)c)->v[vr[i]] = value[i];
    return fmi2OK;
}
fmi2Status fmi2GetReal(fmi2Component c, const fmi2ValueReference vr[], size_t n, fmi2Real value[]) {
    Toy *toy = c;
    toy->v[P_COOLING] = toy->steps > NAN_AT ? NAN : 0.3 * toy->v[Q_IT] * toy->v[GAIN];
    toy->v[T_INDOOR] = toy->v[T_OUTDOOR];
    toy->v[COP] = 3.0;
    for (size_t i = 0; i < n; i++) value[i] = toy->v[vr[i]];
    return fmi2OK;
}
fmi2Status fmi2DoStep(fmi2Component c, fmi2Real time, fmi2Real dt, fmi2Boolean no_set_before) {
    (void)no_set_before;
    Toy *toy = c;
    if (fabs(time - toy->time) > 1e-6) return fmi2Error;
    for (int i = 0; i < FLOOD; i++) {
        toy->callbacks->logger(toy->callbacks->componentEnvironment, "toy", fmi2Warning, "", "flood %d", i);
    }
    if (toy->steps++ == FAIL_AT) {
        toy->callbacks->logger(toy->callbacks->componentEnvironment, "toy", fmi2Error, "", "pump %d seized", 4);
        return FAIL_STATUS;
    }
#ifdef FIXED_STEP
    if (fabs(dt - FIXED_STEP) > 1e-9) return fmi2Error;
#endif
#ifdef ENDS
    return fmi2Discard;
#endif
#ifdef PARTIAL
    if (dt > 1.0) { toy->time = time + dt / 2.0; return fmi2Discard; }
#endif
    toy->time = time + dt;
    return fmi2OK;
}
fmi2Status fmi2GetRealStatus(fmi2Component c, const fmi2StatusKind kind, fmi2Real *value) {
    (void)kind;
    *value = ((Toy *)c)->time;
    return fmi2OK;
}
fmi2Status fmi2GetBooleanStatus(fmi2Component c, const fmi2StatusKind kind, fmi2Boolean *value) {
    (void)c; (void)kind;
#ifdef ENDS
    *value = fmi2True;
#else
    *value = fmi2False;
#endif
    return fmi2OK;
}

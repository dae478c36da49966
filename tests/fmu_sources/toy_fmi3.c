/* A small FMI 3.0 co-simulation FMU. P_cooling = 0.3*Q_IT, T_indoor = T_outdoor, COP = number of events handled.
 *
 * EVENTS           doStep returns early half-way with an event; the next one refuses to run before it is handled
 * EARLY            doStep returns early half-way, without an event
 * STUCK            doStep returns early without progress
 * UNSETTLED        the event iteration never ends
 * DISCRETE_INPUTS  inputs may only be set in initialization and event mode
 * FAIL_AT          doStep number FAIL_AT returns fmi3Error, after a log message
 * ENDS             doStep asks to end the simulation
 */
#include <stdlib.h>

#include "fmi3Functions.h"

#ifndef FAIL_AT
#define FAIL_AT -1
#endif

typedef enum { INITIALIZATION, EVENT, STEP } Mode;
enum { TIME, Q_IT, T_OUTDOOR, P_COOLING, T_INDOOR, COP, N };

typedef struct {
    double v[N];
    Mode mode;
    int event_mode_used, pending, iterations, events, steps;
    fmi3LogMessageCallback log;
    fmi3InstanceEnvironment environment;
} Toy;

const char *fmi3GetVersion(void) { return fmi3Version; }
fmi3Instance fmi3InstantiateCoSimulation(fmi3String name, fmi3String token, fmi3String resources, fmi3Boolean visible,
                                         fmi3Boolean logging, fmi3Boolean event_mode_used, fmi3Boolean early_return,
                                         const fmi3ValueReference intermediate[], size_t n_intermediate,
                                         fmi3InstanceEnvironment environment, fmi3LogMessageCallback log,
                                         fmi3IntermediateUpdateCallback update) {
    (void)name; (void)token; (void)resources; (void)visible; (void)logging; (void)early_return; (void)intermediate;
    (void)n_intermediate; (void)update;
    Toy *toy = calloc(1, sizeof *toy);
    toy->event_mode_used = event_mode_used;
    toy->log = log;
    toy->environment = environment;
    return toy;
}
void fmi3FreeInstance(fmi3Instance c) { free(c); }
fmi3Status fmi3EnterInitializationMode(fmi3Instance c, fmi3Boolean a, fmi3Float64 b, fmi3Float64 t, fmi3Boolean d,
                                       fmi3Float64 e) {
    (void)c; (void)a; (void)b; (void)t; (void)d; (void)e;
    return fmi3OK;
}
fmi3Status fmi3ExitInitializationMode(fmi3Instance c) {
    Toy *toy = c;
    toy->mode = toy->event_mode_used ? EVENT : STEP;
    return fmi3OK;
}
fmi3Status fmi3EnterEventMode(fmi3Instance c) {
    Toy *toy = c;
    if (toy->mode != STEP) return fmi3Error;
    toy->mode = EVENT;
    toy->iterations = 0;
    return fmi3OK;
}
fmi3Status fmi3UpdateDiscreteStates(fmi3Instance c, fmi3Boolean *again, fmi3Boolean *terminate, fmi3Boolean *nominals,
                                    fmi3Boolean *values, fmi3Boolean *next_defined, fmi3Float64 *next) {
    Toy *toy = c;
    if (toy->mode != EVENT) return fmi3Error;
    *again = ++toy->iterations < 2; /* settles in the second iteration */
#ifdef UNSETTLED
    *again = fmi3True;
#endif
    *terminate = *nominals = *values = *next_defined = fmi3False;
    *next = 0.0;
    if (!*again && toy->pending) { toy->pending = 0; toy->events++; }
    return fmi3OK;
}
fmi3Status fmi3EnterStepMode(fmi3Instance c) {
    Toy *toy = c;
    if (toy->mode != EVENT) return fmi3Error;
    toy->mode = STEP;
    return fmi3OK;
}
fmi3Status fmi3Terminate(fmi3Instance c) { (void)c; return fmi3OK; }
fmi3Status fmi3SetFloat64(fmi3Instance c, const fmi3ValueReference vr[], size_t n, const fmi3Float64 value[], size_t m) {
    Toy *toy = c;
    (void)m;
#ifdef DISCRETE_INPUTS
    if (toy->mode == STEP) return fmi3Error;
#endif
    for (size_t i = 0; i < n; i++) toy->v[vr[i]] = value[i];
    return fmi3OK;
}
fmi3Status fmi3GetFloat64(fmi3Instance c, const fmi3ValueReference vr[], size_t n, fmi3Float64 value[], size_t m) {
    Toy *toy = c;
    (void)m;
    toy->v[P_COOLING] = 0.3 * toy->v[Q_IT];
    toy->v[T_INDOOR] = toy->v[T_OUTDOOR];
    toy->v[COP] = toy->events;
    for (size_t i = 0; i < n; i++) value[i] = toy->v[vr[i]];
    return fmi3OK;
}
fmi3Status fmi3DoStep(fmi3Instance c, fmi3Float64 time, fmi3Float64 dt, fmi3Boolean no_set_before, fmi3Boolean *event,
                      fmi3Boolean *terminate, fmi3Boolean *early, fmi3Float64 *last) {
    Toy *toy = c;
    (void)no_set_before;
    *event = *terminate = *early = fmi3False;
    *last = time + dt;
    if (toy->mode != STEP || toy->pending) return fmi3Error;
    if (toy->steps++ == FAIL_AT) {
        toy->log(toy->environment, fmi3Error, "", "compressor tripped");
        return fmi3Error;
    }
#ifdef ENDS
    *terminate = fmi3True;
#endif
#ifdef STUCK
    *early = fmi3True;
    *last = time;
#endif
#if defined(EVENTS) || defined(EARLY)
    if (dt > 30.0) {
        *early = fmi3True;
        *last = time + dt / 2.0;
    }
#endif
#ifdef EVENTS
    if (*early) *event = toy->pending = 1;
#endif
    return fmi3OK;
}

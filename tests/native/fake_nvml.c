/* A libnvidia-ml.so.1 of our own: NVML as Joulie calls it, over GPUs that exist in memory.

   Tests load it in place of the driver's library and steer it by the functions in fake_gpu.h. Signatures and return
   codes follow the public NVML API reference. */

#include "fake_gpu.h"

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    INSUFFICIENT_SIZE = 7,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16,
    LIB_RM_VERSION_MISMATCH = 18
};

int nvmlInit_v2(void) {
    enter();
    if (state->driver == SUCCESS)
        connect_driver();
    return state->driver;
}

int nvmlShutdown(void) {
    enter();
    if (connected_to < 0)
        return UNINITIALIZED;
    disconnect_driver();
    return SUCCESS;
}

const char *nvmlErrorString(int code) {
    switch (code) {
    case SUCCESS: return "Success";
    case UNINITIALIZED: return "Uninitialized";
    case INVALID_ARGUMENT: return "Invalid Argument";
    case NOT_SUPPORTED: return "Not Supported";
    case NO_PERMISSION: return "Insufficient Permissions";
    case DRIVER_NOT_LOADED: return "Driver Not Loaded";
    case GPU_IS_LOST: return "GPU is lost";
    case RESET_REQUIRED: return "GPU requires reset";
    case LIB_RM_VERSION_MISMATCH: return "Driver/library version mismatch";
    default: return "Unknown Error";
    }
}

int nvmlDeviceGetCount_v2(unsigned int *result) {
    enter();
    if (!connected())
        return UNINITIALIZED;
    *result = state->count;
    return state->driver;
}

/* The first failure that a query of this device meets. */
static int failure(const gpu *target, long long own) {
    enter();
    if (!connected())
        return UNINITIALIZED;
    return (int)(target->fail_all ? target->fail_all : own);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, gpu **result) {
    if (index >= state->count)
        return INVALID_ARGUMENT;
    *result = &state->gpus[index];
    return failure(&state->gpus[index], SUCCESS);
}

int nvmlDeviceGetUUID(const gpu *target, char *text, unsigned int length) {
    snprintf(text, length, "GPU-00000000-0000-0000-0000-%012u", target->index);
    return failure(target, SUCCESS);
}

int nvmlDeviceGetName(const gpu *target, char *text, unsigned int length) {
    snprintf(text, length, "NVIDIA H100 80GB HBM3");
    return failure(target, SUCCESS);
}

int nvmlDeviceGetPersistenceMode(const gpu *target, unsigned int *mode) {
    *mode = (unsigned int)state->persistence;
    return failure(target, SUCCESS);
}

int nvmlDeviceGetMigMode(const gpu *target, unsigned int *current, unsigned int *pending) {
    *current = *pending = target->mig > 0;
    return failure(target, target->mig < 0 ? NOT_SUPPORTED : SUCCESS);
}

int nvmlDeviceGetPowerManagementLimitConstraints(const gpu *target, unsigned int *low, unsigned int *high) {
    *low = (unsigned int)target->min_mw;
    *high = (unsigned int)target->max_mw;
    return failure(target, target->fail_limits);
}

int nvmlDeviceGetPowerManagementDefaultLimit(const gpu *target, unsigned int *limit) {
    *limit = (unsigned int)target->default_mw;
    return failure(target, target->fail_limits);
}

int nvmlDeviceGetPowerManagementLimit(const gpu *target, unsigned int *limit) {
    *limit = (unsigned int)target->set_mw;
    return failure(target, target->fail_limits);
}

int nvmlDeviceGetEnforcedPowerLimit(const gpu *target, unsigned int *limit) {
    *limit = (unsigned int)(target->hold_mw ? target->hold_mw : target->set_mw);
    return failure(target, target->fail_limits);
}

int nvmlDeviceSetPowerManagementLimit(gpu *target, unsigned int limit) {
    int code = failure(target, target->fail_set);
    if (code != SUCCESS)
        return code;
    if (limit < target->min_mw || limit > target->max_mw)
        return INVALID_ARGUMENT;
    store_limit(target, limit);
    return SUCCESS;
}

/* Clocks of the SMs: 1980 MHz down to 210 in steps of 15, as the type NVML_CLOCK_SM, which is 1. */
enum { LARGEST_MHZ = 1980, SMALLEST_MHZ = 210, STEP_MHZ = 15, MEMORY_MHZ = 2619 };

int nvmlDeviceGetClockInfo(const gpu *target, int type, unsigned int *mhz) {
    long long boost = target->boost_mhz, lock = target->lock_mhz;
    *mhz = (unsigned int)(target->idle ? SMALLEST_MHZ : lock && lock < boost ? lock : boost);
    return failure(target, type == 1 ? target->fail_clocks : INVALID_ARGUMENT);
}

int nvmlDeviceGetMaxClockInfo(const gpu *target, int type, unsigned int *mhz) {
    *mhz = LARGEST_MHZ;
    return failure(target, type == 1 ? target->fail_clocks : INVALID_ARGUMENT);
}

int nvmlDeviceGetCurrentClocksEventReasons(const gpu *target, unsigned long long *reasons) {
    *reasons = (target->idle ? 1ull : 0) | (target->capped ? 4ull : 0) | (target->hot ? 0x20ull : 0);
    return failure(target, target->fail_clocks);
}

int nvmlDeviceGetSupportedMemoryClocks(const gpu *target, unsigned int *count, unsigned int *mhz) {
    unsigned int room = *count;
    *count = 2;
    if (room < 2)
        return INSUFFICIENT_SIZE;
    mhz[0] = MEMORY_MHZ;
    mhz[1] = 1593;
    return failure(target, target->fail_clocks);
}

int nvmlDeviceGetSupportedGraphicsClocks(const gpu *target, unsigned int memory, unsigned int *count,
                                         unsigned int *mhz) {
    unsigned int room = *count;
    *count = (LARGEST_MHZ - SMALLEST_MHZ) / STEP_MHZ + 1;
    if (room < *count)
        return INSUFFICIENT_SIZE;
    for (unsigned int i = 0; i < *count; i++)
        mhz[i] = LARGEST_MHZ - STEP_MHZ * i;
    return failure(target, memory == MEMORY_MHZ ? target->fail_clocks : INVALID_ARGUMENT);
}

int nvmlDeviceSetGpuLockedClocks(gpu *target, unsigned int smallest, unsigned int largest) {
    int code = failure(target, target->fail_lock);
    if (code != SUCCESS)
        return code;
    if (smallest > largest || smallest < SMALLEST_MHZ || largest > LARGEST_MHZ)
        return INVALID_ARGUMENT;
    target->locks++;
    if (!target->ignore_lock)
        target->lock_mhz = largest;
    return SUCCESS;
}

int nvmlDeviceResetGpuLockedClocks(gpu *target) {
    int code = failure(target, target->fail_reset);
    if (code == SUCCESS) {
        target->resets++;
        target->lock_mhz = 0;
    }
    return code;
}

int nvmlDeviceGetPowerUsage(const gpu *target, unsigned int *power) {
    *power = (unsigned int)target->power_mw;
    return failure(target, target->fail_power);
}

int nvmlDeviceGetTotalEnergyConsumption(const gpu *target, unsigned long long *energy) {
    *energy = (unsigned long long)target->energy_mj;
    return failure(target, target->fail_energy);
}

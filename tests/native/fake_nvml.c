/* A libnvidia-ml.so.1 of our own: NVML as Joulie calls it, over GPUs that exist in memory.

   Tests load it in place of the driver's library and steer it by the fake_* functions below. Signatures and return
   codes follow the public NVML API reference. It starts with the number of GPUs in FAKE_NVML_GPUS (default 0). */

#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum {
    SUCCESS = 0,
    UNINITIALIZED = 1,
    INVALID_ARGUMENT = 2,
    NOT_SUPPORTED = 3,
    NO_PERMISSION = 4,
    DRIVER_NOT_LOADED = 9,
    GPU_IS_LOST = 15,
    RESET_REQUIRED = 16
};

#define MAX_GPUS 16

/* A code that is not SUCCESS in fail_X is what every call of that kind returns. */
typedef struct {
    unsigned int index;
    long long min_mw, max_mw, default_mw, set_mw, power_mw, energy_mj;
    long long hold_mw;    /* this limit is enforced whatever is set; 0: the one set is */
    long long clamp_mw;   /* firmware takes no limit above this without saying so; 0: it does */
    long long ignore_set; /* firmware takes a limit without effect */
    long long fail_all, fail_set, fail_limits, fail_power, fail_energy;
} gpu;

static gpu gpus[MAX_GPUS];
static unsigned int count;
static int connections;
static int driver; /* what initialisation and counting return */

static const struct {
    const char *name;
    size_t offset;
} fields[] = {
#define FIELD(name) {#name, offsetof(gpu, name)}
    FIELD(min_mw), FIELD(max_mw), FIELD(default_mw), FIELD(set_mw), FIELD(power_mw), FIELD(energy_mj),
    FIELD(hold_mw), FIELD(clamp_mw), FIELD(ignore_set),
    FIELD(fail_all), FIELD(fail_set), FIELD(fail_limits), FIELD(fail_power), FIELD(fail_energy),
};

static long long *field(unsigned int index, const char *name) {
    for (size_t i = 0; index < count && i < sizeof fields / sizeof *fields; i++)
        if (strcmp(fields[i].name, name) == 0)
            return (long long *)((char *)&gpus[index] + fields[i].offset);
    fprintf(stderr, "fake_nvml: no field %s of GPU %u\n", name, index);
    abort();
}

void fake_reset(unsigned int gpu_count) {
    connections = 0;
    driver = SUCCESS;
    count = gpu_count;
    for (unsigned int i = 0; i < count; i++)
        gpus[i] = (gpu){.index = i, .min_mw = 200000, .max_mw = 800000, .default_mw = 700000, .set_mw = 700000,
                        .power_mw = 71500 + 1000 * i, .energy_mj = 5000000};
}

void fake_driver(int code) { driver = code; }
void fake_unload(void) { connections = 0; }
int fake_connections(void) { return connections; }
void fake_write(unsigned int index, const char *name, long long value) { *field(index, name) = value; }
long long fake_read(unsigned int index, const char *name) { return *field(index, name); }

__attribute__((constructor)) static void start(void) {
    const char *wanted = getenv("FAKE_NVML_GPUS");
    fake_reset(wanted ? (unsigned int)atoi(wanted) : 0);
}

/* The library's own interface. */

int nvmlInitWithFlags(unsigned int flags) {
    (void)flags;
    if (driver == SUCCESS)
        connections++;
    return driver;
}

int nvmlShutdown(void) {
    if (connections == 0)
        return UNINITIALIZED;
    connections--;
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
    default: return "Unknown Error";
    }
}

int nvmlDeviceGetCount_v2(unsigned int *result) {
    if (connections == 0)
        return UNINITIALIZED;
    *result = count;
    return driver;
}

/* The first failure that a query of this device meets. */
static int failure(const gpu *device, long long own) {
    if (connections == 0)
        return UNINITIALIZED;
    return (int)(device->fail_all ? device->fail_all : own);
}

int nvmlDeviceGetHandleByIndex_v2(unsigned int index, gpu **result) {
    if (index >= count)
        return INVALID_ARGUMENT;
    *result = &gpus[index];
    return failure(&gpus[index], SUCCESS);
}

int nvmlDeviceGetUUID(const gpu *device, char *text, unsigned int length) {
    snprintf(text, length, "GPU-00000000-0000-0000-0000-%012u", device->index);
    return failure(device, SUCCESS);
}

int nvmlDeviceGetName(const gpu *device, char *text, unsigned int length) {
    snprintf(text, length, "NVIDIA H100 80GB HBM3");
    return failure(device, SUCCESS);
}

int nvmlDeviceGetPowerManagementLimitConstraints(const gpu *device, unsigned int *low, unsigned int *high) {
    *low = (unsigned int)device->min_mw;
    *high = (unsigned int)device->max_mw;
    return failure(device, device->fail_limits);
}

int nvmlDeviceGetPowerManagementDefaultLimit(const gpu *device, unsigned int *limit) {
    *limit = (unsigned int)device->default_mw;
    return failure(device, device->fail_limits);
}

int nvmlDeviceGetPowerManagementLimit(const gpu *device, unsigned int *limit) {
    *limit = (unsigned int)device->set_mw;
    return failure(device, device->fail_limits);
}

int nvmlDeviceGetEnforcedPowerLimit(const gpu *device, unsigned int *limit) {
    *limit = (unsigned int)(device->hold_mw ? device->hold_mw : device->set_mw);
    return failure(device, device->fail_limits);
}

int nvmlDeviceSetPowerManagementLimit(gpu *device, unsigned int limit) {
    int code = failure(device, device->fail_set);
    if (code != SUCCESS)
        return code;
    if (limit < device->min_mw || limit > device->max_mw)
        return INVALID_ARGUMENT;
    if (!device->ignore_set)
        device->set_mw = device->clamp_mw && limit > device->clamp_mw ? device->clamp_mw : limit;
    return SUCCESS;
}

int nvmlDeviceGetPowerUsage(const gpu *device, unsigned int *power) {
    *power = (unsigned int)device->power_mw;
    return failure(device, device->fail_power);
}

int nvmlDeviceGetTotalEnergyConsumption(const gpu *device, unsigned long long *energy) {
    *energy = (unsigned long long)device->energy_mj;
    return failure(device, device->fail_energy);
}

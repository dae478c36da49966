/* A libamd_smi.so of our own: AMD SMI as Joulie calls it, over GPUs that exist in memory.

   One socket holds one GPU; GPUs with `partition` set belong to the socket of the one before them, as those of an
   MI300X in CPX mode do, without cap and counter. Signatures, status codes and structures follow the headers of
   ROCm 6 and 7. Tests steer it by the functions in fake_gpu.h. */

#include "fake_gpu.h"

enum { SUCCESS = 0, INVAL = 1, NOT_SUPPORTED = 2, NO_PERM = 10, IO = 12, INIT_ERROR = 18, BUSY = 30, NOT_INIT = 32 };

typedef struct {
    uint64_t power_cap, default_power_cap, dpm_cap, min_power_cap, max_power_cap, reserved[3];
} power_cap_info;

int amdsmi_init(uint64_t flags) {
    enter();
    if (flags != 2)
        return INVAL;
    if (state->driver == SUCCESS)
        connect_driver();
    return state->driver;
}

int amdsmi_shut_down(void) {
    enter();
    if (connected_to < 0)
        return NOT_INIT;
    disconnect_driver();
    return SUCCESS;
}

int amdsmi_status_code_to_string(uint32_t code, const char **text) {
    switch (code) {
    case INVAL: *text = "AMDSMI_STATUS_INVAL: Invalid parameters"; break;
    case NOT_SUPPORTED: *text = "AMDSMI_STATUS_NOT_SUPPORTED: Command not supported"; break;
    case NO_PERM: *text = "AMDSMI_STATUS_NO_PERM: Permission Denied"; break;
    case INIT_ERROR: *text = "AMDSMI_STATUS_INIT_ERROR: Initialization error"; break;
    case BUSY: *text = "AMDSMI_STATUS_BUSY: Device busy"; break;
    case NOT_INIT: *text = "AMDSMI_STATUS_NOT_INIT: Not initialized"; break;
    default: *text = "An unknown error occurred";
    }
    return SUCCESS;
}

static int ready(void) {
    enter();
    return connected() ? state->driver : NOT_INIT;
}

static int list(unsigned int first, unsigned int last, int whole, uint32_t *count, void **handles) {
    uint32_t found = 0;
    for (unsigned int i = first; i < last; i++)
        if (!whole || !state->gpus[i].partition) {
            if (handles && found < *count)
                handles[found] = &state->gpus[i];
            found++;
        }
    *count = found;
    return ready();
}

int amdsmi_get_socket_handles(uint32_t *count, void **handles) { return list(0, state->count, 1, count, handles); }

int amdsmi_get_processor_handles(void *socket, uint32_t *count, void **handles) {
    unsigned int first = ((gpu *)socket)->index, last = first + 1;
    while (last < state->count && state->gpus[last].partition)
        last++;
    return list(first, last, 0, count, handles);
}

int amdsmi_get_processor_type(void *handle, uint32_t *type) {
    (void)handle;
    *type = 1;
    return ready();
}

static int failure(const gpu *target, long long own) {
    int code = ready();
    if (code != SUCCESS)
        return code;
    return (int)(target->fail_all ? target->fail_all : own);
}

int amdsmi_get_gpu_device_uuid(const gpu *target, unsigned int *length, char *uuid) {
    if (*length < 38)
        return INVAL;
    *length = (unsigned int)snprintf(uuid, *length, "00000000-0000-0000-0000-%012u", target->index);
    return failure(target, SUCCESS);
}

int amdsmi_get_gpu_asic_info(const gpu *target, char *info) {
    memset(info, 0xff, 1024);
    strcpy(info, "AMD Instinct MI300X");
    return failure(target, SUCCESS);
}

int amdsmi_get_power_cap_info(const gpu *target, uint32_t sensor, power_cap_info *info) {
    if (sensor != 0)
        return INVAL;
    *info = (power_cap_info){.power_cap = (uint64_t)target->set_mw * 1000,
                             .default_power_cap = (uint64_t)target->default_mw * 1000,
                             .min_power_cap = (uint64_t)target->min_mw * 1000,
                             .max_power_cap = (uint64_t)target->max_mw * 1000};
    return failure(target, target->partition ? NOT_SUPPORTED : target->fail_limits);
}

int amdsmi_set_power_cap(gpu *target, uint32_t sensor, uint64_t cap_uw) {
    int code = failure(target, target->fail_set);
    if (code != SUCCESS)
        return code;
    long long watts = (long long)(cap_uw / 1000000);
    if (sensor != 0 || watts * 1000 < target->min_mw || watts * 1000 > target->max_mw)
        return INVAL;
    store_limit(target, watts * 1000);
    return SUCCESS;
}

int amdsmi_get_energy_count(const gpu *target, uint64_t *counter, float *resolution_uj, uint64_t *time_ns) {
    *resolution_uj = 15.3f;
    *counter = (uint64_t)((double)target->energy_mj * 1000.0 / 15.3);
    *time_ns = 0;
    return failure(target, target->partition ? NOT_SUPPORTED : target->fail_energy);
}

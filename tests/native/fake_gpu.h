/* What the fake libraries of GPU vendors share: state in a file that every process maps, so that a test steers the
   library inside another process. FAKE_GPU_STATE names the file, FAKE_GPU_DEVICE one that is open while a process is
   connected, as a driver's device file is. A hang and a crash act in every call but the fake_* ones. */

#include <fcntl.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#define MAX_GPUS 16

/* A code other than 0 in fail_X is what every call of that kind returns. */
typedef struct {
    unsigned int index;
    long long min_mw, max_mw, default_mw, set_mw, power_mw, energy_mj;
    long long hold_mw;    /* this limit is enforced whatever is set; 0: the one set is */
    long long clamp_mw;   /* firmware takes no limit above this without saying so; 0: it does */
    long long ignore_set; /* firmware takes a limit without effect */
    long long mig;        /* 0: off, 1: on, -1: not supported */
    long long partition;  /* a partition of the GPU before it: without cap and counter */
    long long boost_mhz;   /* SM clock that its work runs at without a lock */
    long long lock_mhz;    /* locked maximum; 0: none */
    long long ignore_lock; /* locks are taken without effect */
    long long idle, capped, hot; /* no work; its power limit, heat holds the clock down */
    long long locks, resets;     /* calls that were taken */
    long long fail_all, fail_set, fail_limits, fail_power, fail_energy, fail_lock, fail_reset, fail_clocks;
} gpu;

typedef struct {
    unsigned int count;
    int driver;         /* what initialisation and counting return */
    int reloads;        /* how often the driver was reloaded: connections from before are void */
    int persistence;    /* persistence mode */
    int hang;           /* calls wait until it is 0 */
    int crash;          /* the next call ends its process as a broken library does */
    int latency_us;     /* of each call */
    int hanging;        /* calls that wait */
    int inits, shutdowns, calls;
    gpu gpus[MAX_GPUS];
} shared_state;

static shared_state *state;
static int connected_to = -1; /* reloads of the driver when this process connected; -1: not connected */
static int device = -1;

static const struct {
    const char *name;
    size_t offset;
} gpu_fields[] = {
#define FIELD(name) {#name, offsetof(gpu, name)}
    FIELD(min_mw), FIELD(max_mw), FIELD(default_mw), FIELD(set_mw), FIELD(power_mw), FIELD(energy_mj),
    FIELD(hold_mw), FIELD(clamp_mw), FIELD(ignore_set), FIELD(mig), FIELD(partition),
    FIELD(boost_mhz), FIELD(lock_mhz), FIELD(ignore_lock), FIELD(idle), FIELD(capped), FIELD(hot),
    FIELD(locks), FIELD(resets),
    FIELD(fail_all), FIELD(fail_set), FIELD(fail_limits), FIELD(fail_power), FIELD(fail_energy),
    FIELD(fail_lock), FIELD(fail_reset), FIELD(fail_clocks),
}, state_fields[] = {
#undef FIELD
#define FIELD(name) {#name, offsetof(shared_state, name)}
    FIELD(driver), FIELD(reloads), FIELD(persistence), FIELD(hang), FIELD(crash), FIELD(latency_us),
    FIELD(hanging), FIELD(inits), FIELD(shutdowns), FIELD(calls),
};

static long long *field(unsigned int index, const char *name) {
    for (size_t i = 0; index < state->count && i < sizeof gpu_fields / sizeof *gpu_fields; i++)
        if (strcmp(gpu_fields[i].name, name) == 0)
            return (long long *)((char *)&state->gpus[index] + gpu_fields[i].offset);
    fprintf(stderr, "fake GPU: no field %s of GPU %u\n", name, index);
    abort();
}

static volatile int *setting(const char *name) {
    for (size_t i = 0; i < sizeof state_fields / sizeof *state_fields; i++)
        if (strcmp(state_fields[i].name, name) == 0)
            return (int *)((char *)state + state_fields[i].offset);
    fprintf(stderr, "fake GPU: no setting %s\n", name);
    abort();
}

void fake_reset(unsigned int gpu_count) {
    memset(state, 0, sizeof *state);
    state->count = gpu_count;
    for (unsigned int i = 0; i < gpu_count; i++)
        state->gpus[i] = (gpu){.index = i, .min_mw = 200000, .max_mw = 800000, .default_mw = 700000,
                               .set_mw = 700000, .power_mw = 71500 + 1000 * i, .energy_mj = 5000000,
                               .boost_mhz = 1980};
}

void fake_set(const char *name, int value) { *setting(name) = value; }
int fake_get(const char *name) { return *setting(name); }
void fake_write(unsigned int index, const char *name, long long value) { *field(index, name) = value; }
long long fake_read(unsigned int index, const char *name) { return *field(index, name); }

__attribute__((constructor)) static void map_state(void) {
    const char *file = getenv("FAKE_GPU_STATE");
    int descriptor = open(file ? file : "/dev/zero", O_RDWR | O_CREAT, 0600);
    if (descriptor < 0 || (file && ftruncate(descriptor, sizeof *state)))
        abort();
    state = mmap(NULL, sizeof *state, PROT_READ | PROT_WRITE, file ? MAP_SHARED : MAP_PRIVATE, descriptor, 0);
    close(descriptor);
    if (state == MAP_FAILED)
        abort();
}

__attribute__((destructor)) static void unmap_state(void) {
    munmap(state, sizeof *state);
}

/* Every call of the library goes through here. */
static void enter(void) {
    state->calls++;
    if (state->crash) {
        state->crash = 0;
        abort();
    }
    if (state->latency_us)
        usleep((useconds_t)state->latency_us);
    __atomic_add_fetch(&state->hanging, 1, __ATOMIC_SEQ_CST);
    while (*setting("hang"))
        usleep(200);
    __atomic_sub_fetch(&state->hanging, 1, __ATOMIC_SEQ_CST);
}

static void connect_driver(void) {
    const char *file = getenv("FAKE_GPU_DEVICE");
    state->inits++;
    connected_to = state->reloads;
    device = file ? open(file, O_RDONLY) : -1;
}

static int connected(void) { return connected_to == state->reloads; }

static void disconnect_driver(void) {
    state->shutdowns++;
    connected_to = -1;
    if (device >= 0)
        close(device);
    device = -1;
}

/* Store a limit as the driver and firmware do. */
static void store_limit(gpu *target, long long limit_mw) {
    if (!target->ignore_set)
        target->set_mw = target->clamp_mw && limit_mw > target->clamp_mw ? target->clamp_mw : limit_mw;
}

/* A wall clock that the benchmark holds, for LD_PRELOAD into redis-server.
 *
 * The file named by BENCH_CLOCK holds two 64-bit integers: microseconds since 1970, and how many of them pass each
 * time the server asks. Monotonic clocks, which the server's own timers use, stay the kernel's. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

struct clock_file {
    _Atomic int64_t now_us;
    _Atomic int64_t tick_us;
};

static struct clock_file *held;

__attribute__((constructor)) static void map_clock(void) {
    const char *path = getenv("BENCH_CLOCK");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *page = mmap(NULL, sizeof(struct clock_file), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    close(fd);
    if (page != MAP_FAILED) held = page;
}

static int64_t read_and_tick(void) {
    return atomic_fetch_add_explicit(&held->now_us, held->tick_us, memory_order_relaxed);
}

int clock_gettime(clockid_t id, struct timespec *ts) {
    if (!held || (id != CLOCK_REALTIME && id != CLOCK_REALTIME_COARSE))
        return (int)syscall(SYS_clock_gettime, id, ts);
    int64_t now = read_and_tick();
    ts->tv_sec = now / 1000000;
    ts->tv_nsec = now % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *restrict tv, void *restrict zone) {
    if (!held) return (int)syscall(SYS_gettimeofday, tv, zone);
    int64_t now = read_and_tick();
    tv->tv_sec = now / 1000000;
    tv->tv_usec = now % 1000000;
    return 0;
}

time_t time(time_t *seconds) {
    struct timeval tv;
    gettimeofday(&tv, NULL);
    if (seconds) *seconds = tv.tv_sec;
    return tv.tv_sec;
}

/* Valkey from 9.1 reads the wall clock once a millisecond and adds processor ticks in between, unless it finds no
 * steady tick counter here. */
FILE *fopen(const char *path, const char *mode) {
    FILE *(*next)(const char *, const char *) = (FILE *(*)(const char *, const char *))dlsym(RTLD_NEXT, "fopen");
    return next(strcmp(path, "/proc/cpuinfo") == 0 ? "/dev/null" : path, mode);
}

FILE *fopen64(const char *path, const char *mode) {
    return fopen(path, mode);
}

/* Valkey loads modules so that they find the C library's functions before preloaded ones. */
void *dlopen(const char *path, int flags) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return next(path, flags & ~RTLD_DEEPBIND);
}

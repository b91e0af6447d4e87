/* Preloaded into redis-server: the wall clock reads what a test or a benchmark wrote into a shared file.
 * The file holds two 64-bit integers: the time in microseconds, and how many microseconds a held clock moves on at each
 * reading. A time of zero means real time, a negative one a clock that runs so far behind it. The monotonic clock stays
 * true, so the server's event loop goes on turning.
 * Raw system calls instead of dlsym(RTLD_NEXT), which allocates and hangs servers built with jemalloc. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static struct { int64_t now_us, tick_us; } *shared;

__attribute__((constructor)) static void map_clock(void) {
    const char *path = getenv("RATELIMIT_TEST_CLOCK");
    int fd = path ? open(path, O_RDWR | O_CLOEXEC) : -1;
    if (fd < 0) return;
    void *map = mmap(NULL, sizeof *shared, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (map != MAP_FAILED) shared = map;
    close(fd);
}

static int64_t held_us(void) {
    if (!shared) return 0;
    int64_t tick_us = __atomic_load_n(&shared->tick_us, __ATOMIC_SEQ_CST);
    if (tick_us == 0) return __atomic_load_n(&shared->now_us, __ATOMIC_SEQ_CST);
    return __atomic_fetch_add(&shared->now_us, tick_us, __ATOMIC_SEQ_CST);
}

int clock_gettime(clockid_t id, struct timespec *at) {
    int64_t us = id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE ? held_us() : 0;
    if (us <= 0) {
        int result = (int)syscall(SYS_clock_gettime, id, at);
        if (us == 0 || result != 0) return result;
        us += at->tv_sec * (int64_t)1000000 + at->tv_nsec / 1000;
    }
    at->tv_sec = us / 1000000;
    at->tv_nsec = us % 1000000 * 1000;
    return 0;
}

int gettimeofday(struct timeval *at, void *zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *out) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (out) *out = now.tv_sec;
    return now.tv_sec;
}

/* Valkey from 9.1 reads the wall clock once a millisecond and adds processor ticks in between, unless it finds no
 * steady tick counter in /proc/cpuinfo. Everything else is opened as the C library would. */
FILE *fopen(const char *path, const char *mode) {
    int flags = strchr(mode, '+') ? O_RDWR : *mode == 'r' ? O_RDONLY : O_WRONLY;
    if (*mode == 'w') flags |= O_CREAT | O_TRUNC;
    if (*mode == 'a') flags |= O_CREAT | O_APPEND;
    if (strchr(mode, 'x')) flags |= O_EXCL;
    if (strchr(mode, 'e')) flags |= O_CLOEXEC;
    if (shared && strcmp(path, "/proc/cpuinfo") == 0) path = "";
    int fd = open(path, flags, 0666);
    return fd < 0 ? NULL : fdopen(fd, mode);
}

FILE *fopen64(const char *path, const char *mode) { return fopen(path, mode); }

/* Valkey loads modules so that they find the C library's functions before anybody's who was preloaded: ours too. */
void *dlopen(const char *path, int flags) {
    void *(*next)(const char *, int) = (void *(*)(const char *, int))dlsym(RTLD_NEXT, "dlopen");
    return next ? next(path, flags & ~RTLD_DEEPBIND) : NULL;
}

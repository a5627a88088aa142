/* Makes one call that changes files below a folder fail, or all from one on; loaded with LD_PRELOAD.
 *
 * arm(folder, at, error, rest): the calls below `folder` are counted from 1; call `at`, and with `rest` all after it,
 * fails with `error`. calls(): how many there were. Nothing fails until it is armed. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/uio.h>
#include <unistd.h>

static char armed[PATH_MAX];
static long seen, chosen;
static int error_number, keep_failing;

void arm(const char *folder, long at, int error, int rest) {
    snprintf(armed, sizeof armed, "%s/", folder);
    chosen = at, error_number = error, keep_failing = rest;
    __atomic_store_n(&seen, 0, __ATOMIC_SEQ_CST);
}

long calls(void) { return __atomic_load_n(&seen, __ATOMIC_SEQ_CST); }

static int fails(const char *path) {
    if (!armed[0] || !path || strncmp(path, armed, strlen(armed))) return 0;
    long number = __atomic_add_fetch(&seen, 1, __ATOMIC_SEQ_CST);
    if (number != chosen && !(keep_failing && chosen && number > chosen)) return 0;
    errno = error_number;
    return 1;
}

static int fails_open(int descriptor) {
    char link[64], path[PATH_MAX];
    if (!armed[0]) return 0;
    snprintf(link, sizeof link, "/proc/self/fd/%d", descriptor);
    ssize_t size = readlink(link, path, sizeof path - 1);
    if (size < 0) return 0;
    path[size] = 0;
    return fails(path);
}

#define NEXT(result, name, ...) \
    static result (*next)(__VA_ARGS__); \
    if (!next) next = (result (*)(__VA_ARGS__))dlsym(RTLD_NEXT, name)

#define OPENS(function) \
    int function(const char *path, int flags, ...) { \
        NEXT(int, #function, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        if ((flags & (O_CREAT | O_WRONLY | O_RDWR)) && fails(path)) return -1; \
        return next(path, flags, mode); \
    }

OPENS(open)
OPENS(open64)

#define OPENS_AT(function) \
    int function(int folder, const char *path, int flags, ...) { \
        NEXT(int, #function, int, const char *, int, ...); \
        va_list rest; \
        va_start(rest, flags); \
        mode_t mode = flags & O_CREAT ? va_arg(rest, mode_t) : 0; \
        va_end(rest); \
        if ((flags & (O_CREAT | O_WRONLY | O_RDWR)) && fails(path)) return -1; \
        return next(folder, path, flags, mode); \
    }

OPENS_AT(openat)
OPENS_AT(openat64)

FILE *fopen64(const char *path, const char *mode) {
    NEXT(FILE *, "fopen64", const char *, const char *);
    return mode[0] != 'r' && fails(path) ? NULL : next(path, mode);
}

ssize_t write(int descriptor, const void *data, size_t size) {
    NEXT(ssize_t, "write", int, const void *, size_t);
    return fails_open(descriptor) ? -1 : next(descriptor, data, size);
}

ssize_t pwrite64(int descriptor, const void *data, size_t size, off64_t place) {
    NEXT(ssize_t, "pwrite64", int, const void *, size_t, off64_t);
    return fails_open(descriptor) ? -1 : next(descriptor, data, size, place);
}

ssize_t pwrite(int descriptor, const void *data, size_t size, off_t place) {
    NEXT(ssize_t, "pwrite", int, const void *, size_t, off_t);
    return fails_open(descriptor) ? -1 : next(descriptor, data, size, place);
}

ssize_t writev(int descriptor, const struct iovec *parts, int number) {
    NEXT(ssize_t, "writev", int, const struct iovec *, int);
    return fails_open(descriptor) ? -1 : next(descriptor, parts, number);
}

int fsync(int descriptor) {
    NEXT(int, "fsync", int);
    return fails_open(descriptor) ? -1 : next(descriptor);
}

int ftruncate64(int descriptor, off64_t size) {
    NEXT(int, "ftruncate64", int, off64_t);
    return fails_open(descriptor) ? -1 : next(descriptor, size);
}

int posix_fallocate64(int descriptor, off64_t place, off64_t size) {
    NEXT(int, "posix_fallocate64", int, off64_t, off64_t);
    return fails_open(descriptor) ? errno : next(descriptor, place, size);
}

int rename(const char *from, const char *to) {
    NEXT(int, "rename", const char *, const char *);
    return fails(to) ? -1 : next(from, to);
}

int mkdir(const char *path, mode_t mode) {
    NEXT(int, "mkdir", const char *, mode_t);
    return fails(path) ? -1 : next(path, mode);
}

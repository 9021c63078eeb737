// Preloaded into a test program and all that it starts: now and then a thread stands still before or after a system call, as on
// a machine that is busy. What is linked statically, such as programs in Go, is left alone.
//
//   PAUSES_MS    the longest pause, in milliseconds
//   PAUSES_NOT   names of programs that go on, with a space between
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

// A thread stands still at one of so many calls, and then not for some seconds.
enum { ONE_IN = 80, SHORTEST_MS = 100, APART_MS = 2500 };

static long longest_ms = -1;
static __thread uint64_t state;
static __thread int64_t not_before_ms;

static int64_t now_ms(void) {
    struct timespec now;
    syscall(SYS_clock_gettime, CLOCK_MONOTONIC, &now);
    return now.tv_sec * 1000 + now.tv_nsec / 1000000;
}

// Xorshift; no call of the library, which may be in the midst of one.
static uint64_t next_random(void) {
    if (state == 0) {
        state = ((uint64_t)now_ms() << 32 ^ (uint64_t)syscall(SYS_gettid) << 16 ^ (uintptr_t)&state) | 1;
    }
    state ^= state << 13;
    state ^= state >> 7;
    state ^= state << 17;
    return state;
}

static void look_at_settings(void) {
    const char *longest = getenv("PAUSES_MS"), *others = getenv("PAUSES_NOT");
    char name[17] = "";
    int file = syscall(SYS_openat, AT_FDCWD, "/proc/self/comm", O_RDONLY | O_CLOEXEC);
    if (file >= 0) {
        long read = syscall(SYS_read, file, name, 16);
        syscall(SYS_close, file);
        name[read > 0 ? read - 1 : 0] = 0;
    }
    int goes_on = name[0] == 0 || (others && strstr(others, name));
    longest_ms = longest && !goes_on ? atol(longest) : 0;
}

static void stand_still(void) {
    int error = errno;
    if (longest_ms < 0) look_at_settings();
    if (longest_ms > SHORTEST_MS && next_random() % ONE_IN == 0 && now_ms() >= not_before_ms) {
        int64_t pause = SHORTEST_MS + next_random() % (longest_ms - SHORTEST_MS);
        struct timespec left = {pause / 1000, pause % 1000 * 1000000};
        not_before_ms = now_ms() + pause + APART_MS + next_random() % APART_MS;
        syscall(SYS_clock_nanosleep, CLOCK_MONOTONIC, 0, &left, NULL);
    }
    errno = error;
}

#define CALL(type, name, parameters, ...)                     \
    type name parameters {                                    \
        static type(*real) parameters;                        \
        if (!real) real = (void *)dlsym(RTLD_NEXT, #name);    \
        stand_still();                                        \
        type result = real(__VA_ARGS__);                      \
        stand_still();                                        \
        return result;                                        \
    }

CALL(ssize_t, read, (int file, void *bytes, size_t count), file, bytes, count)
CALL(ssize_t, write, (int file, const void *bytes, size_t count), file, bytes, count)
CALL(ssize_t, writev, (int file, const struct iovec *parts, int count), file, parts, count)
CALL(ssize_t, recv, (int file, void *bytes, size_t count, int flags), file, bytes, count, flags)
CALL(ssize_t, send, (int file, const void *bytes, size_t count, int flags), file, bytes, count, flags)
CALL(int, connect, (int file, const struct sockaddr *address, socklen_t length), file, address, length)
CALL(int, accept4, (int file, struct sockaddr *address, socklen_t *length, int flags), file, address, length, flags)
CALL(int, epoll_wait, (int file, struct epoll_event *events, int count, int limit), file, events, count, limit)
CALL(int, rename, (const char *from, const char *to), from, to)
CALL(int, unlink, (const char *path), path)
CALL(int, kill, (pid_t process, int number), process, number)
CALL(pid_t, fork, (void), )
CALL(int, execve, (const char *path, char *const *words, char *const *settings), path, words, settings)
CALL(pid_t, waitpid, (pid_t process, int *status, int options), process, status, options)
CALL(pid_t, wait3, (int *status, int options, struct rusage *usage), status, options, usage)
CALL(int, nanosleep, (const struct timespec *time, struct timespec *left), time, left)

#define OPEN(name)                                            \
    int name(const char *path, int flags, ...) {              \
        static int (*real)(const char *, int, ...);           \
        if (!real) real = (void *)dlsym(RTLD_NEXT, #name);    \
        va_list more;                                         \
        va_start(more, flags);                                \
        int mode = va_arg(more, int);                         \
        va_end(more);                                         \
        stand_still();                                        \
        return real(path, flags, mode);                       \
    }

OPEN(open)
OPEN(open64)

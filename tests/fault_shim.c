// A library for LD_PRELOAD that makes the n-th call of one kind fail, as a system short of files,
// memory, disk or threads does. A test maps the file that KVASIR_FAULTS names and writes what is to
// fail there, before or while the process runs (tests/fault_shim.py):
//   bytes 0 to 31: the kind, the first argument of a KIND below; 32: u32 errno;
//   36: u32 how many calls fail from the n-th on; 40: u64 n, from 1; 48: u64 calls of the kind so
//   far; 56: u64 calls that failed; 64: u32 1 while armed.
// With the errno kHang they do not fail: they do not return as long as it is armed. With kLeak they
// do not fail either: each takes 1 MiB that nothing gives back.
// Calls that the C library makes inside itself are not seen.
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <sched.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/file.h>
#include <sys/ioctl.h>
#include <sys/mman.h>
#include <sys/random.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/timerfd.h>
#include <sys/uio.h>
#include <unistd.h>

struct Control {
  char kind[32];
  uint32_t error, how_many;
  uint64_t first;
  _Atomic uint64_t seen, failed;
  _Atomic uint32_t armed;
};

static const uint32_t kHang = 0xFFFF, kLeak = 0xFFFE;
static struct Control* control;

__attribute__((constructor)) static void Open(void) {
  const char* path = getenv("KVASIR_FAULTS");
  if (path == NULL) return;
  const long fd = syscall(SYS_openat, AT_FDCWD, path, O_RDWR | O_CLOEXEC);
  if (fd < 0) return;
  void* memory =
      (void*)syscall(SYS_mmap, NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, (int)fd, 0);
  syscall(SYS_close, fd);
  if (memory != MAP_FAILED) control = memory;
}

// Whether this call fails; errno says with what.
static int Fails(const char* kind) {
  struct Control* c = control;
  if (c == NULL || !atomic_load(&c->armed) || strcmp(kind, c->kind) != 0) return 0;
  const uint64_t number = atomic_fetch_add(&c->seen, 1) + 1;
  if (number < c->first || number - c->first >= c->how_many) return 0;
  atomic_fetch_add(&c->failed, 1);
  if (c->error == kHang) {
    while (atomic_load(&c->armed)) usleep(1000);
    return 0;
  }
  if (c->error == kLeak) {
    syscall(SYS_mmap, NULL, 1 << 20, PROT_READ | PROT_WRITE,
            MAP_PRIVATE | MAP_ANONYMOUS | MAP_POPULATE, -1, 0);
    return 0;
  }
  errno = (int)c->error;
  return 1;
}

// The function that the process would have called, found at its first call.
#define REAL(name)               \
  static __typeof__(name)* real; \
  if (real == NULL) real = (__typeof__(name)*)dlsym(RTLD_NEXT, #name)

// KIND(kind, result, name, (parameters), (arguments), what it returns when it fails)
#define KIND(kind, result, name, parameters, arguments, failure) \
  result name parameters {                                       \
    REAL(name);                                                  \
    if (Fails(kind)) return failure;                             \
    return real arguments;                                       \
  }

#define OPEN(name)                                                                \
  int name(const char* path, int flags, ...) {                                    \
    REAL(name);                                                                   \
    if (Fails("open")) return -1;                                                 \
    va_list list;                                                                 \
    va_start(list, flags);                                                        \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
    va_end(list);                                                                 \
    return real(path, flags, mode);                                               \
  }
OPEN(open)
OPEN(open64)
#define OPENAT(name)                                                              \
  int name(int folder, const char* path, int flags, ...) {                        \
    REAL(name);                                                                   \
    if (Fails("open")) return -1;                                                 \
    va_list list;                                                                 \
    va_start(list, flags);                                                        \
    const mode_t mode = flags & (O_CREAT | O_TMPFILE) ? va_arg(list, mode_t) : 0; \
    va_end(list);                                                                 \
    return real(folder, path, flags, mode);                                       \
  }
OPENAT(openat)
OPENAT(openat64)
KIND("open", FILE*, fopen, (const char* path, const char* mode), (path, mode), NULL)
KIND("open", FILE*, fopen64, (const char* path, const char* mode), (path, mode), NULL)
KIND("opendir", DIR*, opendir, (const char* path), (path), NULL)
KIND("readdir", struct dirent64*, readdir64, (DIR * folder), (folder), NULL)
KIND("opendir", DIR*, fdopendir, (int fd), (fd), NULL)
KIND("opendir", struct dirent*, readdir, (DIR * folder), (folder), NULL)

KIND("read", ssize_t, read, (int fd, void* to, size_t size), (fd, to, size), -1)
KIND("read", ssize_t, pread, (int fd, void* to, size_t size, off_t at), (fd, to, size, at), -1)
KIND("read", ssize_t, pread64, (int fd, void* to, size_t size, off64_t at), (fd, to, size, at), -1)
KIND("read", ssize_t, readv, (int fd, const struct iovec* v, int n), (fd, v, n), -1)
// Waking an event loop through an eventfd or a pipe cannot fail.
static int IsWake(int fd) {
  struct stat s;
  if (fd <= 2 || syscall(SYS_fstat, fd, &s) != 0) return 0;
  return (s.st_mode & S_IFMT) == 0 || S_ISFIFO(s.st_mode);
}
ssize_t write(int fd, const void* from, size_t size) {
  REAL(write);
  if (!IsWake(fd) && Fails("write")) return -1;
  return real(fd, from, size);
}
KIND("write", ssize_t, pwrite, (int fd, const void* from, size_t size, off_t at),
     (fd, from, size, at), -1)
KIND("write", ssize_t, pwrite64, (int fd, const void* from, size_t size, off64_t at),
     (fd, from, size, at), -1)
KIND("write", ssize_t, writev, (int fd, const struct iovec* v, int n), (fd, v, n), -1)
KIND("sync", int, fsync, (int fd), (fd), -1)
KIND("sync", int, fdatasync, (int fd), (fd), -1)
KIND("truncate", int, ftruncate, (int fd, off_t size), (fd, size), -1)
KIND("truncate", int, ftruncate64, (int fd, off64_t size), (fd, size), -1)
KIND("rename", int, rename, (const char* from, const char* to), (from, to), -1)
KIND("link", int, link, (const char* from, const char* to), (from, to), -1)
KIND("unlink", int, unlink, (const char* path), (path), -1)
KIND("unlink", int, remove, (const char* path), (path), -1)
KIND("mkdir", int, mkdir, (const char* path, mode_t mode), (path, mode), -1)
KIND("chmod", int, chmod, (const char* path, mode_t mode), (path, mode), -1)
KIND("flock", int, flock, (int fd, int what), (fd, what), -1)
KIND("utimens", int, utimensat,
     (int folder, const char* path, const struct timespec t[2], int flags),
     (folder, path, t, flags), -1)
KIND("readlink", ssize_t, readlink, (const char* path, char* to, size_t size), (path, to, size), -1)
KIND("access", int, access, (const char* path, int mode), (path, mode), -1)
KIND("stat", int, stat, (const char* path, struct stat* s), (path, s), -1)
KIND("stat", int, stat64, (const char* path, struct stat64* s), (path, s), -1)
KIND("stat", int, lstat, (const char* path, struct stat* s), (path, s), -1)
KIND("stat", int, fstat, (int fd, struct stat* s), (fd, s), -1)
KIND("stat", int, fstat64, (int fd, struct stat64* s), (fd, s), -1)
KIND("stat", int, fstatat, (int fd, const char* path, struct stat* s, int flags),
     (fd, path, s, flags), -1)
KIND("stat", int, statx, (int fd, const char* path, int flags, unsigned mask, struct statx* s),
     (fd, path, flags, mask, s), -1)

KIND("mmap", void*, mmap, (void* at, size_t size, int prot, int flags, int fd, off_t offset),
     (at, size, prot, flags, fd, offset), MAP_FAILED)
KIND("mmap", void*, mmap64, (void* at, size_t size, int prot, int flags, int fd, off64_t offset),
     (at, size, prot, flags, fd, offset), MAP_FAILED)
KIND("munmap", int, munmap, (void* at, size_t size), (at, size), -1)
KIND("mprotect", int, mprotect, (void* at, size_t size, int prot), (at, size, prot), -1)
KIND("madvise", int, madvise, (void* at, size_t size, int what), (at, size, what), -1)
KIND("mlock", int, mlock, (const void* at, size_t size), (at, size), -1)
KIND("getrandom", ssize_t, getrandom, (void* to, size_t size, unsigned flags), (to, size, flags),
     -1)
KIND("getrandom", int, getentropy, (void* to, size_t size), (to, size), -1)

KIND("thread", int, pthread_create,
     (pthread_t * thread, const pthread_attr_t* attributes, void* (*body)(void*), void* argument),
     (thread, attributes, body, argument), errno)
KIND("affinity", int, sched_getaffinity, (pid_t pid, size_t size, cpu_set_t* set), (pid, size, set),
     -1)
KIND("affinity", int, sched_setaffinity, (pid_t pid, size_t size, const cpu_set_t* set),
     (pid, size, set), -1)
KIND("affinity", int, pthread_setaffinity_np, (pthread_t thread, size_t size, const cpu_set_t* set),
     (thread, size, set), errno)
KIND("getrlimit", int, getrlimit, (__rlimit_resource_t what, struct rlimit* limit), (what, limit),
     -1)
KIND("isatty", int, isatty, (int fd), (fd), 0)

KIND("socket", int, socket, (int domain, int type, int protocol), (domain, type, protocol), -1)
KIND("bind", int, bind, (int fd, __CONST_SOCKADDR_ARG a, socklen_t size), (fd, a, size), -1)
KIND("listen", int, listen, (int fd, int backlog), (fd, backlog), -1)
KIND("accept", int, accept, (int fd, __SOCKADDR_ARG a, socklen_t* size), (fd, a, size), -1)
KIND("accept", int, accept4, (int fd, __SOCKADDR_ARG a, socklen_t* size, int flags),
     (fd, a, size, flags), -1)
KIND("sockopt", int, setsockopt, (int fd, int level, int name, const void* value, socklen_t size),
     (fd, level, name, value, size), -1)
KIND("sockname", int, getsockname, (int fd, __SOCKADDR_ARG a, socklen_t* size), (fd, a, size), -1)
KIND("sockname", int, getpeername, (int fd, __SOCKADDR_ARG a, socklen_t* size), (fd, a, size), -1)
KIND("recv", ssize_t, recv, (int fd, void* to, size_t size, int flags), (fd, to, size, flags), -1)
KIND("recv", ssize_t, recvmsg, (int fd, struct msghdr* m, int flags), (fd, m, flags), -1)
KIND("send", ssize_t, send, (int fd, const void* from, size_t size, int flags),
     (fd, from, size, flags), -1)
KIND("send", ssize_t, sendmsg, (int fd, const struct msghdr* m, int flags), (fd, m, flags), -1)
KIND("shutdown", int, shutdown, (int fd, int how), (fd, how), -1)
KIND("epoll_create", int, epoll_create1, (int flags), (flags), -1)
KIND("epoll_create", int, epoll_create, (int size), (size), -1)
KIND("epoll_ctl", int, epoll_ctl, (int fd, int what, int of, struct epoll_event* e),
     (fd, what, of, e), -1)
KIND("epoll_wait", int, epoll_wait, (int fd, struct epoll_event* e, int n, int ms), (fd, e, n, ms),
     -1)
KIND("poll", int, poll, (struct pollfd * fds, nfds_t n, int ms), (fds, n, ms), -1)
KIND("eventfd", int, eventfd, (unsigned value, int flags), (value, flags), -1)
KIND("timerfd", int, timerfd_create, (int clock, int flags), (clock, flags), -1)
KIND("timerfd", int, timerfd_settime,
     (int fd, int flags, const struct itimerspec* to, struct itimerspec* old), (fd, flags, to, old),
     -1)
KIND("pipe", int, pipe, (int ends[2]), (ends), -1)
KIND("pipe", int, pipe2, (int ends[2], int flags), (ends, flags), -1)

// What fails to close is closed all the same.
int close(int fd) {
  REAL(close);
  const int fails = Fails("close"), error = errno;
  const int result = real(fd);
  if (!fails) return result;
  errno = error;
  return -1;
}

#define LAST_ARGUMENT(name, fails, type)     \
  int name(int fd, type what, ...) {         \
    REAL(name);                              \
    if (fails) return -1;                    \
    va_list list;                            \
    va_start(list, what);                    \
    void* const value = va_arg(list, void*); \
    va_end(list);                            \
    return real(fd, what, value);            \
  }
// Setting flags of a descriptor that is open cannot fail.
LAST_ARGUMENT(fcntl, what != F_SETFL && what != F_SETFD && Fails("fcntl"), int)
LAST_ARGUMENT(fcntl64, what != F_SETFL && what != F_SETFD && Fails("fcntl"), int)
LAST_ARGUMENT(ioctl, Fails("ioctl"), unsigned long)

// Waiting for a futex must work; the rest are memory policies and affinity masks.
long syscall(long number, ...) {
  static long (*real)(long, ...);
  if (real == NULL) real = (long (*)(long, ...))dlsym(RTLD_NEXT, "syscall");
  if (number != SYS_futex && Fails("syscall")) return -1;
  va_list list;
  va_start(list, number);
  long a[6];
  for (int i = 0; i < 6; ++i) a[i] = va_arg(list, long);
  va_end(list);
  return real(number, a[0], a[1], a[2], a[3], a[4], a[5]);
}

// glibc's own names of these: dlsym would allocate.
extern void *__libc_malloc(size_t), *__libc_calloc(size_t, size_t);
extern void *__libc_realloc(void*, size_t), *__libc_memalign(size_t, size_t);
void* malloc(size_t size) { return Fails("malloc") ? NULL : __libc_malloc(size); }
void* calloc(size_t n, size_t size) { return Fails("malloc") ? NULL : __libc_calloc(n, size); }
void* realloc(void* p, size_t size) { return Fails("malloc") ? NULL : __libc_realloc(p, size); }
void* aligned_alloc(size_t to, size_t size) {
  return Fails("malloc") ? NULL : __libc_memalign(to, size);
}

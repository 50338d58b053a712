/* Counts the calls of a process that change files under given folders. At the n-th of them it kills
 * the process (before the call, or after half of a write), lets the call fail, takes away what was
 * not yet synced to disk and then kills, stops the process, or turns the clock back.
 *
 * Preloaded with LD_PRELOAD and armed with `crash_arm`; until then, every call passes through.
 * What glibc's own stdio does is seen by `fopen` and `fwrite`, because its inner calls cannot be
 * replaced. Calls that a library makes without libc are not seen: safetensors renames in this way.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

enum action { PASS, KILL, TORN, FAIL, LOSE_CONTENT, LOSE_NAMES, CLOCK, STOP };
enum change { CREATED, MADE_FOLDER, RENAMED, REMOVED, REMOVED_FOLDER };
enum verdict { GO, REFUSED, HALF };

#define MOST 8192
#define DAY 86400

static struct {
    int armed, action, error, lasting, spent;
    long n, count;
    char folders[4][PATH_MAX];
    int num_folders, log;
    char grave[PATH_MAX];
} plan = {.log = -1};

/* A file's size when it was last synced; what was written later is lost with the power. */
static struct {
    ino_t inode;
    off_t synced;
    int dirty;
} files[MOST];
static int num_files;

/* Changes of names that no sync of their folder has made durable, oldest first. */
static struct {
    int kind, kept;
    char from[PATH_MAX], to[PATH_MAX];
} *names;
static int num_names, num_kept;

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;

#define REAL(name) ((__typeof__(&name))real(#name))

static void *real(const char *name) {
    return dlsym(RTLD_NEXT, name);
}

/* ---- which calls count ---- */

static int inside(const char *path) {
    for (int i = 0; i < plan.num_folders; i++) {
        size_t length = strlen(plan.folders[i]);
        if (!strncmp(path, plan.folders[i], length) && (path[length] == '/' || !path[length]))
            return 1;
    }
    return 0;
}

static int path_of_fd(int fd, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t length = readlink(link, path, PATH_MAX - 1);
    path[length < 0 ? 0 : length] = 0;
    return length > 0;
}

/* The absolute path of what a call names, in `full`; whether it lies in a folder that counts. */
static int counts(int folder, const char *path, char *full) {
    if (!plan.armed || !path) return 0;
    if (path[0] == '/') {
        snprintf(full, PATH_MAX, "%s", path);
    } else {
        char base[PATH_MAX];
        if (folder == AT_FDCWD) {
            if (!getcwd(base, sizeof base)) return 0;
        } else if (!path_of_fd(folder, base)) {
            return 0;
        }
        while (path[0] == '.' && path[1] == '/') path += 2;
        snprintf(full, PATH_MAX, "%.2000s/%.2000s", base, path);
    }
    for (size_t end = strlen(full); end > 1 && full[end - 1] == '/'; end--) full[end - 1] = 0;
    return inside(full);
}

static int counts_fd(int fd, char *full) {
    struct stat about;
    if (!plan.armed || fstat(fd, &about)) return 0;
    if (!S_ISREG(about.st_mode) && !S_ISDIR(about.st_mode)) return 0;
    return path_of_fd(fd, full) && inside(full);
}

/* ---- what a loss of power takes away ---- */

static int file_of(ino_t inode) {
    for (int i = num_files - 1; i >= 0; i--)
        if (files[i].inode == inode) return i;
    if (num_files == MOST) abort();
    files[num_files].inode = inode;
    files[num_files].synced = 0;
    files[num_files].dirty = 0;
    return num_files++;
}

static void opened(int fd, int fresh) {
    struct stat about;
    if (fstat(fd, &about) || !S_ISREG(about.st_mode)) return;
    int before = num_files, i = file_of(about.st_ino);
    if (fresh) {
        files[i].synced = 0;
        files[i].dirty = 1;
    } else if (i == before) {
        files[i].synced = about.st_size;
    }
}

static void written(int fd) {
    struct stat about;
    if (!fstat(fd, &about) && S_ISREG(about.st_mode)) files[file_of(about.st_ino)].dirty = 1;
}

static int parent_is(const char *path, const char *folder) {
    const char *slash = strrchr(path, '/');
    size_t length = slash ? (size_t)(slash - path) : 0;
    return strlen(folder) == length && !strncmp(path, folder, length);
}

static void synced(int fd, const char *path) {
    struct stat about;
    if (fstat(fd, &about)) return;
    if (S_ISREG(about.st_mode)) {
        int i = file_of(about.st_ino);
        files[i].synced = about.st_size;
        files[i].dirty = 0;
        return;
    }
    int left = 0;
    for (int i = 0; i < num_names; i++) {
        const char *where = names[i].kind == RENAMED ? names[i].to : names[i].from;
        if (parent_is(where, path)) continue;
        if (left != i) names[left] = names[i];
        left++;
    }
    num_names = left;
}

/* Paths that start with `from` start with `to` from now on. */
static void moved(const char *from, const char *to, int up_to) {
    size_t length = strlen(from);
    for (int i = 0; i < up_to; i++) {
        char *both[] = {names[i].from, names[i].to};
        for (int j = 0; j < 2; j++) {
            if (strncmp(both[j], from, length) || both[j][length] != '/') continue;
            char changed[PATH_MAX];
            snprintf(changed, sizeof changed, "%.2000s%.2000s", to, both[j] + length);
            strcpy(both[j], changed);
        }
    }
}

static void note(int kind, const char *from, const char *to, int kept) {
    if (plan.action != LOSE_NAMES) return;
    if (!names) names = calloc(MOST, sizeof *names);
    if (num_names == MOST) abort();
    names[num_names].kind = kind;
    names[num_names].kept = kept;
    strcpy(names[num_names].from, from);
    strcpy(names[num_names].to, to);
    num_names++;
}

static void grave_of(int kept, char *path) {
    snprintf(path, PATH_MAX, "%.2000s/%d", plan.grave, kept);
}

/* Keep a file that is about to lose its name, and return its number, or -1. */
static int keep(const char *path) {
    struct stat about;
    char grave[PATH_MAX];
    if (plan.action != LOSE_NAMES || lstat(path, &about) || !S_ISREG(about.st_mode)) return -1;
    grave_of(num_kept, grave);
    return REAL(link)(path, grave) ? -1 : num_kept++;
}

static void lose_content(const char *folder) {
    DIR *entries = opendir(folder);
    struct dirent *entry;
    while (entries && (entry = readdir(entries))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        char path[PATH_MAX];
        struct stat about;
        snprintf(path, sizeof path, "%.2000s/%.2000s", folder, entry->d_name);
        if (lstat(path, &about)) continue;
        if (S_ISDIR(about.st_mode)) lose_content(path);
        if (!S_ISREG(about.st_mode)) continue;
        int i = file_of(about.st_ino);
        if (files[i].dirty && files[i].synced < about.st_size)
            (void)!REAL(truncate)(path, files[i].synced);
    }
    if (entries) closedir(entries);
}

static void remove_all(const char *folder) {
    DIR *entries = opendir(folder);
    struct dirent *entry;
    while (entries && (entry = readdir(entries))) {
        if (!strcmp(entry->d_name, ".") || !strcmp(entry->d_name, "..")) continue;
        char path[PATH_MAX];
        snprintf(path, sizeof path, "%.2000s/%.2000s", folder, entry->d_name);
        if (entry->d_type == DT_DIR) remove_all(path);
        else REAL(unlink)(path);
    }
    if (entries) closedir(entries);
    REAL(rmdir)(folder);
}

static void lose_names(void) {
    while (num_names-- > 0) {
        const char *from = names[num_names].from, *to = names[num_names].to;
        char grave[PATH_MAX];
        grave_of(names[num_names].kept, grave);
        switch (names[num_names].kind) {
        case CREATED:
            REAL(unlink)(from);
            break;
        case MADE_FOLDER:
            remove_all(from);
            break;
        case REMOVED_FOLDER:
            REAL(mkdir)(from, 0777);
            break;
        case REMOVED:
            if (names[num_names].kept >= 0) REAL(link)(grave, from);
            break;
        case RENAMED:
            REAL(rename)(to, from);
            if (names[num_names].kept >= 0) REAL(link)(grave, to);
            moved(to, from, num_names);
        }
    }
}

static void power_loss(void) {
    for (int i = 0; i < plan.num_folders; i++) lose_content(plan.folders[i]);
    if (plan.action == LOSE_NAMES) lose_names();
}

/* ---- the n-th call ---- */

static void die(void) {
    if (plan.action == LOSE_CONTENT || plan.action == LOSE_NAMES) power_loss();
    syscall(SYS_kill, getpid(), SIGKILL);
    for (;;) pause();
}

/* Removing files needs no room, and writing to an open file no permission. */
static int can_fail(const char *name) {
    int removes = strstr(name, "unlink") || strstr(name, "rmdir");
    int writes = strstr(name, "write") || strstr(name, "sync") || strstr(name, "ftruncate");
    if (plan.error == ENOSPC) return !removes;
    if (plan.error == EROFS || plan.error == EACCES) return !writes;
    return 1;
}

static enum verdict decide(const char *name, const char *path, int torn) {
    long call = ++plan.count;
    if (plan.log >= 0) {
        char line[PATH_MAX + 64];
        int length = snprintf(line, sizeof line, "%ld %s %.3000s\n", call, name, path);
        (void)!syscall(SYS_write, plan.log, line, length);
    }
    if (call < plan.n || plan.action == PASS || plan.action == CLOCK) return GO;
    if (plan.action == STOP) {
        if (call == plan.n) syscall(SYS_kill, getpid(), SIGSTOP);
        return GO;
    }
    if (plan.action == FAIL) {
        if (!can_fail(name) || (plan.spent && !plan.lasting)) return GO;
        plan.spent = 1;
        errno = plan.error;
        return REFUSED;
    }
    if (plan.action == TORN && torn) return HALF;
    die();
    return GO;
}

/* `folders` and `log` are absolute; folders are separated by colons. */
void crash_arm(const char *folders, const char *log, const char *grave, long n, int action,
               int error, int lasting) {
    char all[4 * PATH_MAX], *rest = all, *folder;
    snprintf(all, sizeof all, "%s", folders);
    plan.num_folders = 0;
    while ((folder = strsep(&rest, ":")) && plan.num_folders < 4)
        snprintf(plan.folders[plan.num_folders++], PATH_MAX, "%.4000s", folder);
    if (*log) plan.log = syscall(SYS_openat, AT_FDCWD, log, O_WRONLY | O_CREAT | O_TRUNC, 0666);
    snprintf(plan.grave, PATH_MAX, "%s", grave);
    plan.n = n;
    plan.action = action;
    plan.error = error;
    plan.lasting = lasting;
    plan.count = plan.spent = num_files = num_names = 0;
    plan.armed = 1;
}

long crash_count(void) {
    return plan.count;
}

/* The power goes now, after everything the process did. */
void crash_now(void) {
    pthread_mutex_lock(&lock);
    die();
}

/* ---- calls that name a path ---- */

#define BEGIN(counted)                                                                             \
    char path[PATH_MAX];                                                                           \
    if (!(counted)) path[0] = 0;                                                                   \
    else pthread_mutex_lock(&lock)
#define END                                                                                        \
    if (path[0]) pthread_mutex_unlock(&lock)

static int open_any(const char *name, int folder, const char *given, int flags, mode_t mode) {
    int changes = (flags & (O_CREAT | O_TRUNC)) || (flags & O_ACCMODE) != O_RDONLY;
    BEGIN(changes && counts(folder, given, path));
    int result = -1, absent = path[0] && faccessat(folder, given, F_OK, AT_SYMLINK_NOFOLLOW);
    int temporary = (flags & O_TMPFILE) == O_TMPFILE;
    if (!path[0] || decide(name, path, 0) == GO)
        result = syscall(SYS_openat, folder, given, flags | O_LARGEFILE, mode);
    int why = errno;
    if (path[0] && result >= 0) {
        opened(result, temporary || absent || (flags & O_TRUNC));
        if (absent && !temporary) note(CREATED, path, "", -1);
    }
    END;
    errno = why;
    return result;
}

#define MODE                                                                                       \
    mode_t mode = 0;                                                                               \
    if (flags & (O_CREAT | O_TMPFILE)) {                                                           \
        va_list rest;                                                                              \
        va_start(rest, flags);                                                                     \
        mode = va_arg(rest, mode_t);                                                               \
        va_end(rest);                                                                              \
    }

int open(const char *path, int flags, ...) {
    MODE
    return open_any("open", AT_FDCWD, path, flags, mode);
}
int open64(const char *path, int flags, ...) {
    MODE
    return open_any("open", AT_FDCWD, path, flags, mode);
}
int openat(int folder, const char *path, int flags, ...) {
    MODE
    return open_any("open", folder, path, flags, mode);
}
int openat64(int folder, const char *path, int flags, ...) {
    MODE
    return open_any("open", folder, path, flags, mode);
}
int __open_2(const char *path, int flags) {
    return open_any("open", AT_FDCWD, path, flags, 0);
}
int __open64_2(const char *path, int flags) {
    return open_any("open", AT_FDCWD, path, flags, 0);
}
int creat(const char *path, mode_t mode) {
    return open_any("open", AT_FDCWD, path, O_CREAT | O_WRONLY | O_TRUNC, mode);
}
int creat64(const char *path, mode_t mode) {
    return creat(path, mode);
}

FILE *fopen(const char *given, const char *mode) {
    int flags = strchr(mode, '+') ? O_RDWR : mode[0] == 'r' ? O_RDONLY : O_WRONLY;
    if (mode[0] == 'w') flags |= O_CREAT | O_TRUNC;
    if (mode[0] == 'a') flags |= O_CREAT | O_APPEND;
    if (strchr(mode, 'x')) flags |= O_EXCL;
    if (strchr(mode, 'e')) flags |= O_CLOEXEC;
    int fd = open_any("fopen", AT_FDCWD, given, flags, 0666);
    return fd < 0 ? NULL : fdopen(fd, mode);
}
FILE *fopen64(const char *path, const char *mode) {
    return fopen(path, mode);
}

static int rename_any(int old, const char *from, int new, const char *to, unsigned flags) {
    char before[PATH_MAX];
    int leaves = counts(old, from, before);
    BEGIN(counts(new, to, path));
    int result = -1, kept = -1;
    if (!path[0] || decide("rename", path, 0) == GO) {
        if (path[0]) kept = keep(path);
        result = syscall(SYS_renameat2, old, from, new, to, flags);
    }
    int why = errno;
    if (path[0] && leaves && !result) {
        moved(before, path, num_names);
        note(RENAMED, before, path, kept);
    }
    END;
    errno = why;
    return result;
}
int rename(const char *from, const char *to) {
    return rename_any(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int renameat(int old, const char *from, int new, const char *to) {
    return rename_any(old, from, new, to, 0);
}
int renameat2(int old, const char *from, int new, const char *to, unsigned flags) {
    return rename_any(old, from, new, to, flags);
}

static int unlink_any(int folder, const char *given, int flags) {
    BEGIN(counts(folder, given, path));
    int result = -1, kept = -1;
    if (!path[0] || decide(flags ? "rmdir" : "unlink", path, 0) == GO) {
        if (path[0] && !flags) kept = keep(path);
        result = syscall(SYS_unlinkat, folder, given, flags);
    }
    int why = errno;
    if (path[0] && !result) note(flags ? REMOVED_FOLDER : REMOVED, path, "", kept);
    END;
    errno = why;
    return result;
}
int unlink(const char *path) {
    return unlink_any(AT_FDCWD, path, 0);
}
int unlinkat(int folder, const char *path, int flags) {
    return unlink_any(folder, path, flags);
}
int rmdir(const char *path) {
    return unlink_any(AT_FDCWD, path, AT_REMOVEDIR);
}

int mkdirat(int folder, const char *given, mode_t mode) {
    BEGIN(counts(folder, given, path));
    int result = -1;
    if (!path[0] || decide("mkdir", path, 0) == GO)
        result = syscall(SYS_mkdirat, folder, given, mode);
    int why = errno;
    if (path[0] && !result) note(MADE_FOLDER, path, "", -1);
    END;
    errno = why;
    return result;
}
int mkdir(const char *path, mode_t mode) {
    return mkdirat(AT_FDCWD, path, mode);
}

#define PLAIN(name, folder, given, call)                                                           \
    BEGIN(counts(folder, given, path));                                                            \
    int result = -1;                                                                               \
    if (!path[0] || decide(name, path, 0) == GO) result = (call);                                  \
    int why = errno;                                                                               \
    END;                                                                                           \
    errno = why;                                                                                   \
    return result

int truncate(const char *given, off_t size) {
    PLAIN("truncate", AT_FDCWD, given, syscall(SYS_truncate, given, size));
}
int truncate64(const char *path, off_t size) {
    return truncate(path, size);
}
int linkat(int old, const char *from, int new, const char *to, int flags) {
    PLAIN("link", new, to, syscall(SYS_linkat, old, from, new, to, flags));
}
int link(const char *from, const char *to) {
    return linkat(AT_FDCWD, from, AT_FDCWD, to, 0);
}
int symlinkat(const char *target, int folder, const char *given) {
    PLAIN("symlink", folder, given, syscall(SYS_symlinkat, target, folder, given));
}
int symlink(const char *target, const char *path) {
    return symlinkat(target, AT_FDCWD, path);
}
int fchmodat(int folder, const char *given, mode_t mode, int flags) {
    PLAIN("chmod", folder, given, REAL(fchmodat)(folder, given, mode, flags));
}
int chmod(const char *path, mode_t mode) {
    return fchmodat(AT_FDCWD, path, mode, 0);
}

/* ---- calls on an open file ---- */

/* `whole` does the call, `half` writes half of what it would. */
#define ON_FD(name, fd, whole, half)                                                               \
    BEGIN(counts_fd(fd, path));                                                                    \
    __typeof__(whole) result = -1;                                                                 \
    enum verdict verdict = path[0] ? decide(name, path, 1) : GO;                                   \
    if (verdict == GO) result = (whole);                                                           \
    if (verdict == HALF) {                                                                         \
        (void)!(half);                                                                             \
        die();                                                                                     \
    }                                                                                              \
    int why = errno;                                                                               \
    if (path[0] && result >= 0) written(fd);                                                       \
    END;                                                                                           \
    errno = why;                                                                                   \
    return result

ssize_t write(int fd, const void *bytes, size_t size) {
    ON_FD("write", fd, (ssize_t)syscall(SYS_write, fd, bytes, size),
          syscall(SYS_write, fd, bytes, size / 2));
}
ssize_t pwrite(int fd, const void *bytes, size_t size, off_t at) {
    ON_FD("pwrite", fd, (ssize_t)syscall(SYS_pwrite64, fd, bytes, size, at),
          syscall(SYS_pwrite64, fd, bytes, size / 2, at));
}
ssize_t pwrite64(int fd, const void *bytes, size_t size, off_t at) {
    return pwrite(fd, bytes, size, at);
}
ssize_t writev(int fd, const struct iovec *parts, int number) {
    ON_FD("writev", fd, (ssize_t)syscall(SYS_writev, fd, parts, number),
          syscall(SYS_write, fd, parts[0].iov_base, parts[0].iov_len / 2));
}
ssize_t pwritev(int fd, const struct iovec *parts, int number, off_t at) {
    ON_FD("pwritev", fd, REAL(pwritev)(fd, parts, number, at),
          syscall(SYS_pwrite64, fd, parts[0].iov_base, parts[0].iov_len / 2, at));
}
ssize_t pwritev64(int fd, const struct iovec *parts, int number, off_t at) {
    return pwritev(fd, parts, number, at);
}
ssize_t copy_file_range(int from, off_t *at, int fd, off_t *to, size_t size, unsigned flags) {
    ON_FD("copy_write", fd, (ssize_t)syscall(SYS_copy_file_range, from, at, fd, to, size, flags),
          syscall(SYS_copy_file_range, from, at, fd, to, size / 2, flags));
}
ssize_t sendfile(int fd, int from, off_t *at, size_t size) {
    ON_FD("sendfile_write", fd, (ssize_t)syscall(SYS_sendfile, fd, from, at, size),
          syscall(SYS_sendfile, fd, from, at, size / 2));
}
ssize_t sendfile64(int fd, int from, off_t *at, size_t size) {
    return sendfile(fd, from, at, size);
}
int ftruncate(int fd, off_t size) {
    ON_FD("ftruncate", fd, (int)syscall(SYS_ftruncate, fd, size), 0);
}
int ftruncate64(int fd, off_t size) {
    return ftruncate(fd, size);
}
int fallocate(int fd, int mode, off_t at, off_t size) {
    ON_FD("fallocate_write", fd, (int)syscall(SYS_fallocate, fd, mode, at, size), 0);
}
int fallocate64(int fd, int mode, off_t at, off_t size) {
    return fallocate(fd, mode, at, size);
}
int posix_fallocate(int fd, off_t at, off_t size) {
    return fallocate(fd, 0, at, size) ? errno : 0;
}
int posix_fallocate64(int fd, off_t at, off_t size) {
    return posix_fallocate(fd, at, size);
}

size_t fwrite(const void *bytes, size_t size, size_t number, FILE *file) {
    int fd = fileno(file);
    BEGIN(counts_fd(fd, path));
    size_t result = 0;
    enum verdict verdict = path[0] ? decide("fwrite", path, 1) : GO;
    if (verdict == GO) {
        result = REAL(fwrite)(bytes, size, number, file);
        if (path[0] && fflush(file)) result = 0; /* or it would reach the disk in an unseen call */
    }
    if (verdict == HALF) {
        (void)!syscall(SYS_write, fd, bytes, size * number / 2);
        die();
    }
    int why = errno;
    if (path[0] && result) written(fd);
    END;
    errno = why;
    return result;
}

static int sync_any(int call, int fd) {
    BEGIN(counts_fd(fd, path));
    int result = -1;
    if (!path[0] || decide("fsync", path, 0) == GO) result = syscall(call, fd);
    int why = errno;
    if (path[0] && !result) synced(fd, path);
    END;
    if (!path[0] && plan.armed && !result && path_of_fd(fd, path)) {
        /* perhaps the folder that one of the folders is in */
        pthread_mutex_lock(&lock);
        synced(fd, path);
        pthread_mutex_unlock(&lock);
    }
    errno = why;
    return result;
}
int fsync(int fd) {
    return sync_any(SYS_fsync, fd);
}
int fdatasync(int fd) {
    return sync_any(SYS_fdatasync, fd);
}

/* ---- a clock that jumps back by a day ---- */

static int turned_back(void) {
    return plan.armed && plan.action == CLOCK && plan.count >= plan.n;
}
int clock_gettime(clockid_t clock, struct timespec *now) {
    int result = syscall(SYS_clock_gettime, clock, now);
    if (!result && clock == CLOCK_REALTIME && turned_back()) now->tv_sec -= DAY;
    return result;
}
int gettimeofday(struct timeval *now, void *zone) {
    int result = syscall(SYS_gettimeofday, now, zone);
    if (!result && turned_back()) now->tv_sec -= DAY;
    return result;
}
time_t time(time_t *result) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (result) *result = now.tv_sec;
    return now.tv_sec;
}

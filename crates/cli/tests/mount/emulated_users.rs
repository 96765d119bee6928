//! Commands of users who have no ids but their own: other users are emulated.

use crate::bed::Bed;
use crate::exec::{can_exec, exec_as_user, exec_as_user_by, little_system};
use crate::testbed::{Ran, fsck, have, is_root, run};
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::Path;

/// The Python of the system: an ordinary user may have no access to root's.
const PYTHON: &str = "/usr/bin/python3";

fn can_emulate() -> bool {
    can_exec() && is_root() && have("setpriv") && Path::new(PYTHON).exists()
}

/// Runs a shell script as a user without ranges of ids.
#[track_caller]
fn exec(bed: &Bed, options: &str, script: &str) -> Ran {
    let ran = exec_as_user(bed, "", "666", options, &format!("set -e; {script}"));
    fsck(&bed.image);
    ran
}

#[track_caller]
fn gives(ran: &Ran, expected: &str) {
    let told = (String::from_utf8_lossy(&ran.stdout).into_owned(), &*ran.stderr, ran.code);
    assert_eq!(told, (expected.to_owned(), "", Some(0)));
}

/// Mode, user and group of files on the volume, as debugfs shows them.
fn owners(bed: &Bed, paths: &[&str]) -> Vec<String> {
    let commands = bed.image.with_extension("stat");
    fs::write(&commands, paths.iter().map(|path| format!("stat {path}\n")).collect::<String>()).unwrap();
    let told = run("debugfs", &["-f", commands.to_str().unwrap(), bed.image.to_str().unwrap()]);
    let word = |line: &str, name: &str| {
        let rest = line.split(name).nth(1)?;
        rest.split_whitespace().next().map(str::to_owned)
    };
    let modes = told.lines().filter_map(|line| word(line, "Mode:"));
    let ids = told.lines().filter_map(|line| Some((word(line, "User:")?, word(line, "Group:")?)));
    let all: Vec<String> =
        modes.zip(ids).map(|(mode, (user, group))| format!("{mode} {user}:{group}")).collect();
    assert_eq!(all.len(), paths.len(), "{told}");
    all
}

fn python(program: &str) -> String {
    format!("{PYTHON} - <<'END'\nimport ctypes, os, signal, sys, threading\n{program}\nEND\n")
}

#[test]
fn a_lone_user_gives_files_away_on_the_volume() {
    if !can_emulate() {
        return;
    }
    let bed = Bed::unmounted("16M", &["-E", "root_owner=0:0"]);
    // Paths that are relative, absolute, through links of both kinds, and to links themselves.
    let script = "umask 22; mkdir d d/e; touch f g h d/x; cp /bin/true s; chmod 6755 s; mkfifo p; ln -s ../h d/link; \
                  ln -s \"$PWD/g\" d/absolute; ln -s d/e deep; \
                  chown 1000:1001 f; stat -c %u:%g f; (cd d; chown 5 ../s; chown 6:6 link; chown 7 absolute; \
                  chown -h 8:9 link; chown -h 10 absolute); chown 11:12 p; (cd deep; chown :13 .; chown 14 ../x); \
                  chown 15:16 \"$EXTANT_VOLUME/d\"; ! chown 5 none 2>&-; ! chown 5 f/none 2>&-; stat -c %A s";
    gives(&exec(&bed, "", script), "0:0\n-rwxr-xr-x\n");
    let files = ["/f", "/s", "/h", "/g", "/d/link", "/d/absolute", "/p", "/d/e", "/d/x", "/d"];
    let expected = [
        "0644 1000:1001",
        "0755 5:0",
        "0644 6:6",
        "0644 7:0",
        "0777 8:9",
        "0777 10:0",
        "0644 11:12",
        "0755 0:13",
        "0644 14:0",
        "0755 15:16",
    ];
    assert_eq!(owners(&bed, &files), expected);
    // By descriptors, and what fails.
    let program = "
def fails(call, *arguments, **options):
    try: call(*arguments, **options)
    except OSError as error: return error.errno
libc = ctypes.CDLL(None, use_errno=True)
def chownat(dir, path, user, flags):
    return ctypes.get_errno() if libc.fchownat(dir, path, user, -1, flags) else 0
f = os.open('f', os.O_RDONLY)
os.fchown(f, 20, 21)
place = os.open('d/link', os.O_PATH | os.O_NOFOLLOW)
dir = os.open('d', os.O_RDONLY)
assert chownat(place, b'', 22, 0x1000) == 0
assert chownat(dir, b'x', 23, 0x100) == 0
assert chownat(-100, b'/proc/self/fd/%d' % f, 24, 0) == 0
gone = os.open('gone', os.O_CREAT | os.O_RDWR)
os.unlink('gone')
os.fchown(gone, 25, 25)
print(fails(os.chown, 'none', 5, 5), fails(os.fchown, 99, 5, 5), fails(os.chown, 'f/x', 5, 5), fails(os.chown, '', 5, 5),
    chownat(-100, b'f', 5, 2), chownat(-100, b'x' * 5000, 5, 0), chownat(-100, ctypes.c_void_p(16), 5, 0), chownat(f, b'x', 5, 0))
# Files that are not the volume's keep their owners, and so does one of it when nothing is asked for.
os.chown('/dev/fuse', 5, 5)
os.chown('h', -1, -1)
r, w = os.pipe()
os.fchown(r, 5, 5)
print(os.stat('/dev/fuse').st_uid)
# Only the supervisor may set the owner attribute.
print(fails(os.setxattr, 'f', 'system.extant.owner', bytes(12)))";
    gives(&exec(&bed, "", &python(program)), "2 9 20 2 22 36 14 20\n65534\n95\n");
    let files = ["/f", "/d/link", "/d/x", "/h"];
    assert_eq!(owners(&bed, &files), ["0644 24:21", "0777 22:9", "0644 23:0", "0644 6:6"]);
    let ran = exec(&bed, "--ro", "LC_ALL=C chown 5 f");
    assert!(ran.code == Some(1) && ran.stderr.contains("Read-only file system"), "{ran:?}");
}

#[test]
fn a_lone_user_gives_files_away_in_a_root_directory() {
    if !can_emulate() || !have("ldd") {
        return;
    }
    let source = tempfile::tempdir().unwrap();
    little_system(source.path(), &["sh", "chown", "setpriv", "ln", "id"]);
    let bed = Bed::unmounted("32M", &["-E", "root_owner=0:0", "-d", source.path().to_str().unwrap()]);
    let script = "cd /etc; echo > f; echo > /g; ln -s /g link; ln -s ../../../etc/f up; chown 5:6 up; chown 7 link; \
                  chown -h 8 /etc/link; echo > /dev/shm/x; chown 5 /dev/shm/x; \
                  setpriv --reuid 9 --regid 10 --clear-groups sh -c 'id -u; id -G; echo > /h' 2>&1 || echo denied; \
                  chown 9 /etc; setpriv --reuid 9 --regid 10 --clear-groups sh -c 'echo > h; ! chown 0 h 2>&-'";
    gives(&exec(&bed, "--root", script), "9\n10\nsh: 1: cannot create /h: Permission denied\ndenied\n");
    assert_eq!(
        owners(&bed, &["/etc/f", "/g", "/etc/link", "/etc/h"]),
        ["0644 5:6", "0644 7:0", "0777 8:0", "0644 9:10"]
    );
}

#[test]
fn processes_of_a_lone_user_become_others() {
    if !can_emulate() {
        return;
    }
    let bed = Bed::unmounted("16M", &["-E", "root_owner=0:0"]);
    // As apt does: give up everything, and see that there is no way back.
    let program = "
def fails(call, *arguments):
    try: call(*arguments)
    except OSError as error: return error.errno
os.mkdir('theirs')
os.chown('theirs', 42, 43)
open('secret', 'w').close()
os.chmod('secret', 0o600)
os.setgroups([7, 3])
if os.fork() == 0:
    os.setgroups([44, 43])
    os.setresgid(43, 43, 43)
    os.setresuid(42, 42, 42)
    print(os.getresuid(), os.getresgid(), os.getgroups(), os.getuid(), os.geteuid(), os.getgid(), os.getegid())
    print(fails(os.setuid, 0), fails(os.seteuid, 0), fails(os.setgid, 0), fails(os.setegid, 0), fails(os.setgroups, []))
    print(fails(open, 'secret'), fails(open, 'new', 'w'), fails(os.chown, 'secret', 42, 43), fails(os.chmod, 'secret', 0o666))
    os.chdir('theirs')
    open('a', 'w').close()
    os.mkdir('b')
    os.chown('a', 42, 44)
    print(fails(os.chown, 'a', 0, -1), fails(os.chown, 'a', -1, 0), fails(os.chown, '/dev/null', 0, 0), flush=True)
    # A limit that programs may set without losing who they are.
    import resource
    resource.setrlimit(10, (1, 1))
    assert fails(resource.prlimit, 0, 10, (5, 5)) == 1 and resource.prlimit(0, 10)[0] > 5
    # Others with the same user, whose parents are gone.
    if os.fork() == 0:
        if os.fork() == 0:
            if os.fork() == 0: os.execlp('sh', 'sh', '-c', 'umask 0; mkdir c; id -u > c/id')
            os._exit(0)
        os._exit(0)
    os._exit(0)
while True:
    try: os.wait()
    except ChildProcessError: break
while not os.path.exists('theirs/c/id') or os.stat('theirs/c/id').st_size == 0: os.sched_yield()
print(os.getuid(), os.getgroups(), open('theirs/c/id').read())";
    gives(
        &exec(&bed, "", &python(program)),
        "(42, 42, 42) (43, 43, 43) [43, 44] 42 42 43 43\n1 1 1 1 1\n13 13 1 1\n1 1 1\n0 [3, 7] 42\n\n",
    );
    assert_eq!(
        owners(&bed, &["/theirs", "/theirs/a", "/theirs/b", "/theirs/c", "/theirs/c/id"]),
        ["0755 42:43", "0644 42:44", "0755 42:43", "0777 42:43", "0666 42:43"]
    );
    // Many at once, and without a change of the volume.
    let each =
        "setpriv --reuid $i --regid $i --clear-groups sh -c 'umask 0; test $(id -u) = $0; echo > of.$0' $i";
    let script = format!("chmod 777 .; for i in 1 2 3 4 5 6 7 8; do {each} & done; wait");
    gives(&exec(&bed, "", &script), "");
    let names = ["/of.1", "/of.2", "/of.3", "/of.4", "/of.5", "/of.6", "/of.7", "/of.8"];
    let expected: Vec<String> = (1..9).map(|id| format!("0666 {id}:{id}")).collect();
    assert_eq!(owners(&bed, &names), expected);
    gives(&exec(&bed, "--ro", "setpriv --reuid 5 --regid 6 --clear-groups sh -c 'id -u; id -g'"), "5\n6\n");
}

/// Changes ids at random, and prints what each call returned and which ids a process then has. It
/// ends each time with what a child of it has, and at times what the next program has.
const WALK: &str = "
libc = ctypes.CDLL(None, use_errno=True)
state = 1
def pick(many):
    global state
    state = (state * 6364136223846793005 + 1442695040888963407) % 2**64
    return (state >> 33) % many
def id(): return [-1, 0, 1, 2, 3][pick(5)]
IDS = '''
import ctypes, os
libc = ctypes.CDLL(None, use_errno=True)
def ids():
    user, group = [(ctypes.c_uint * 3)() for _ in range(2)]
    address = lambda words: [ctypes.byref(words, 4 * at) for at in range(3)]
    libc.getresuid(*address(user)); libc.getresgid(*address(group))
    return [*user, *group, libc.geteuid(), libc.getegid(), libc.setfsuid(-1), libc.setfsgid(-1), os.getgroups()]
'''
exec(IDS)
calls = [('setuid', 1), ('setgid', 1), ('setreuid', 2), ('setregid', 2), ('setresuid', 3), ('setresgid', 3),
    ('setfsuid', 1), ('setfsgid', 1), ('setgroups', 0)]
os.setgroups([])
for walk in range(40):
    r, w = os.pipe()
    if os.fork() == 0:
        told = []
        for step in range(8):
            name, count = calls[pick(len(calls))]
            if count: arguments = [id() for _ in range(count)]
            else:
                groups = [id() for _ in range(pick(4))]
                arguments = [len(groups), (ctypes.c_uint * 4)(*groups)]
            ctypes.set_errno(0)
            done = getattr(libc, name)(*arguments)
            told.append((name, arguments if count else groups, done, ctypes.get_errno(), ids()))
        if os.fork() == 0:
            os.write(w, repr((told, ids())).encode())
            if walk % 5: os._exit(0)
            os.dup2(w, 1)
            os.execv(sys.executable, ['python3', '-ISc', IDS + 'print(ids(), end=\\'\\')'])
        os.wait()
        os._exit(0)
    pick(1 + walk)
    os.close(w)
    print(open(r).read(), flush=True)
    os.wait()
";

#[test]
fn ids_change_as_the_kernel_changes_them() {
    if !can_emulate() {
        return;
    }
    let bed = Bed::unmounted("16M", &[]);
    let program = python(WALK);
    let emulated = exec(&bed, "", &program);
    let real = run("sh", &["-c", &program]);
    assert!(real.lines().count() == 40 && real.contains("setresgid"), "{real}");
    for (ours, theirs) in String::from_utf8(emulated.stdout).unwrap().lines().zip(real.lines()) {
        assert_eq!(ours, theirs);
    }
    assert_eq!((&*emulated.stderr, emulated.code), ("", Some(0)));
}

#[test]
fn a_hard_limit_below_the_marks_is_told() {
    if !can_emulate() || !have("prlimit") {
        return;
    }
    let bed = Bed::unmounted("16M", &["-E", "root_owner=0:0"]);
    let launcher = "prlimit --locks=100:100 ./extant";
    let ran = exec_as_user_by(&bed, launcher, "", "666", "", "echo > f; ! chown 5 f 2>&-; stat -c %u f");
    assert_eq!((&*ran.stdout, ran.code), (&b"0\n"[..], Some(0)), "{ran:?}");
    let told = "other users cannot be emulated: the hard limit of file locks (ulimit -Hx) is 100; let root";
    assert!(ran.stderr.contains(told), "{ran:?}");
}

#[test]
fn a_command_that_lies_or_dies_while_it_is_answered_harms_nobody() {
    if !can_emulate() {
        return;
    }
    let bed = Bed::unmounted("16M", &["-E", "root_owner=0:0"]);
    let outside = bed.image.with_extension("outside");
    fs::write(&outside, "").unwrap();
    std::os::unix::fs::chown(&outside, Some(1234), Some(1234)).unwrap();
    let program = "
outside = os.fsencode(os.environ['OUTSIDE'])
open('mine', 'w').close()
inside = b'mine'.ljust(len(outside), b'\\0')
path = ctypes.create_string_buffer(inside)
libc = ctypes.CDLL(None)
done = False
def change():
    while not done:
        ctypes.memmove(path, outside, len(outside))
        ctypes.memmove(path, inside, len(inside))
thread = threading.Thread(target=change)
thread.start()
for _ in range(300): libc.chown(path, 5, 5)
done = True
thread.join()
libc.chown(b'mine', 5, 5)
# Killed within a call, or between two.
for _ in range(20):
    r, w = os.pipe()
    child = os.fork()
    if child == 0:
        os.write(w, b'.')
        while True: os.chown('mine', 6, 6)
    os.read(r, 1)
    os.close(r); os.close(w)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
os.chown('mine', 7, 7)
# Some are still at it when the command ends.
for _ in range(3):
    if os.fork() == 0:
        while True: os.chown('other', 8, 8) if os.path.exists('other') else os.setuid(0)
";
    let script = format!("export OUTSIDE='{}'; {}", outside.display(), python(program));
    gives(&exec(&bed, "", &script), "");
    assert_eq!(owners(&bed, &["/mine"]), ["0644 7:7"]);
    assert_eq!(fs::metadata(&outside).map(|found| (found.uid(), found.gid())).unwrap(), (1234, 1234));
}

//! Mounts where the kernel keeps what is written.

use crate::bed::{Bed, can_mount, text};
use crate::testbed::{Ran, have, noise};
use std::fs::{self, File};
use std::io::Write;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt};

/// Writes, mappings, cuts and allocations in random order, compared with a copy in memory.
const MIX: &str = "
import mmap, random, ctypes
libc = ctypes.CDLL(None, use_errno=True)
r = random.Random(SEED)
most, pages = 300000, 320 * 1024
f = os.open('f', os.O_RDWR | os.O_CREAT)
direct = os.open('f', os.O_RDWR | os.O_DIRECT)
appends = os.open('f', os.O_WRONLY | os.O_APPEND)
want = bytearray()
buffer = mmap.mmap(-1, pages)
def allocate(mode, at, len):
    if libc.fallocate(f, mode, ctypes.c_long(at), ctypes.c_long(len)): raise OSError(ctypes.get_errno())
def grow(to):
    if len(want) < to: want.extend(bytes(to - len(want)))
for n in range(400):
    at, len_ = r.randrange(most), r.randrange(1, 20000)
    new = r.randbytes(len_)
    what = r.randrange(11)
    if what < 3:
        assert os.pwrite(f, new, at) == len_
        grow(at + len_); want[at:at + len_] = new
    elif what == 3 and want:
        at %= len(want); new = new[:len(want) - at]
        m = mmap.mmap(f, len(want)); m[at:at + len(new)] = new
        if r.randrange(2): m.flush()
        m.close(); want[at:at + len(new)] = new
    elif what == 4:
        to = r.choice([at, at // 2, 0 if n % 5 == 0 else at])
        os.ftruncate(f, to); grow(to); del want[to:]
    elif what == 5:
        assert os.write(appends, new) == len_
        want.extend(new)
        if len(want) > most: os.truncate('f', most); del want[most:]
    elif what == 6:
        allocate(3, at, len_); end = min(at + len_, len(want))
        if at < end: want[at:end] = bytes(end - at)
    elif what == 7:
        allocate(0x10, at, len_); grow(at + len_); want[at:at + len_] = bytes(len_)
    elif what == 8 and want:
        at = at % len(want) & -4096
        got = os.preadv(direct, [buffer], at)
        assert buffer[:got] == bytes(want[at:at + got]) and at + got == len(want), (n, at, got, len(want))
    elif what == 9:
        at &= -4096; buffer[:8192] = r.randbytes(8192)
        assert os.pwritev(direct, [memoryview(buffer)[:8192]], at) == 8192
        grow(at + 8192); want[at:at + 8192] = buffer[:8192]
    elif want:
        at %= len(want); to = len(want) + r.randrange(9000); len_ = min(len_, len(want) - at)
        if to + len_ < most:
            got = os.copy_file_range(f, f, len_, at, to)
            grow(to + got); want[to:to + got] = want[at:at + got]
    assert os.fstat(f).st_size == len(want), (n, what)
    if n % 10 == 0: assert os.pread(f, pages, 0) == bytes(want), (n, what)
    if n % 50 == 0: os.fsync(f)
for d in (f, direct, appends): os.close(d)
open('copy', 'wb').write(want)
";

#[test]
fn files_hold_what_is_written_in_any_way() {
    if !can_mount() || !have("python3") {
        return;
    }
    let mut bed = Bed::new("32M", &[], "writeback");
    let seed = std::env::var("EXTANT_SEED").unwrap_or("1".into());
    bed.python(&MIX.replace("SEED", &seed));
    // A hole is not told while it may have contents that were not sent yet.
    bed.python(
        "f = open('hole', 'w+b', buffering=0); f.truncate(1 << 20); f.write(b'x')\n\
         assert os.lseek(f.fileno(), 0, os.SEEK_DATA) == 0 and os.lseek(f.fileno(), 0, os.SEEK_HOLE) == 1 << 20",
    );
    bed.shell("cmp f copy; (for n in $(seq 300); do echo line $n >> log; done); (for n in $(seq 300); do echo line $n; done) | cmp - log");
    let times = |bed: &Bed| {
        ["f", "copy", "log", "hole"].map(|name| {
            let found = fs::metadata(bed.path(name)).unwrap();
            [
                found.size().try_into().unwrap(),
                found.mtime(),
                found.mtime_nsec(),
                found.ctime(),
                found.ctime_nsec(),
            ]
        })
    };
    let before = times(&bed);
    bed.umount();
    bed.mount("ro");
    bed.shell("cmp f copy; tail -n 1 log | grep -qx 'line 300'");
    assert_eq!(times(&bed), before, "the kernel's times are on the volume");
    bed.umount();
}

#[test]
fn what_was_written_reaches_a_file_whatever_it_has_become() {
    if !can_mount() || !have("chattr") {
        return;
    }
    let mut bed = Bed::new("16M", &[], "writeback");
    let at = |name: &str| bed.path(name);
    let [mut fixed, mut grows, mut program] =
        ["fixed", "grows", "program"].map(|name| File::create(at(name)).unwrap());
    for file in [&mut fixed, &mut grows, &mut program] {
        file.write_all(&noise(3, 10_000)).unwrap();
    }
    bed.shell("chattr +i fixed; chattr +a grows");
    fs::set_permissions(at("program"), fs::Permissions::from_mode(0o6755)).unwrap();
    [fixed, grows, program].iter().for_each(|file| file.sync_all().unwrap());
    bed.shell("echo more >> grows; echo end >> grows; ! echo x > grows; ! echo x >> fixed");
    bed.umount();
    bed.mount("writeback");
    for name in ["fixed", "program"] {
        assert!(fs::read(bed.path(name)).unwrap() == noise(3, 10_000), "{name}");
    }
    assert_eq!(fs::read(bed.path("grows")).unwrap()[10_000..], *b"more\nend\n");
    assert_eq!(fs::metadata(bed.path("program")).unwrap().mode() & 0o7777, 0o6755);
    bed.shell("echo x >> program; test $(stat -c %a program) = 6755; chattr -i fixed; chattr -a grows");
    bed.umount();
}

/// The kernel alone knows what has not been sent: pages of mappings, and with `writeback` more.
#[test]
fn a_sync_covers_what_the_kernel_still_keeps() {
    if !can_mount() || !have("python3") {
        return;
    }
    for options in ["commit=900", "commit=900,writeback"] {
        let mut bed = Bed::new("16M", &[], options);
        let mut open = File::create(bed.path("open")).unwrap();
        open.write_all(&noise(1, 300_000)).unwrap();
        let gone = File::create(bed.path("gone")).unwrap();
        fs::remove_file(bed.path("gone")).unwrap();
        gone.write_all_at(b"nobody will see it", 0).unwrap();
        // A mapping of this process's.
        bed.python(&format!(
            "import mmap, subprocess\nf = open('mapped', 'w+b'); f.truncate(8192)\n\
             m = mmap.mmap(f.fileno(), 8192); m[5000:5006] = b'stored'\n\
             subprocess.run([{:?}, 'sync', '.'], check=True)\nos.kill({}, 9)\n\
             while True:\n  try: os.stat('.')\n  except OSError: os._exit(0)",
            env!("CARGO_BIN_EXE_extant"),
            bed.server().as_raw_nonzero()
        ));
        drop((open, gone));
        bed.mount("");
        assert!(fs::read(bed.path("open")).unwrap() == noise(1, 300_000), "{options}");
        assert_eq!(fs::read(bed.path("mapped")).unwrap()[5000..5006], *b"stored", "{options}");
        bed.umount();
    }
}

#[test]
fn a_full_volume_is_told_when_a_file_is_synced_or_closed() {
    if !can_mount() || !have("dd") {
        return;
    }
    let mut bed = Bed::new("8M", &["-m", "0"], "writeback");
    let ran: Ran = std::process::Command::new("dd")
        .args(["if=/dev/zero", "bs=64k", "count=256", &format!("of={}", text(&bed.path("f")))])
        .output()
        .unwrap()
        .into();
    assert!(ran.code == Some(1) && ran.stderr.contains("No space left"), "{}", ran.stderr);
    let synced = File::create(bed.path("g")).unwrap();
    let told = (&synced).write_all(&noise(2, 64 << 10)).and_then(|()| synced.sync_all());
    assert_eq!(told.unwrap_err().raw_os_error(), Some(28));
    drop(synced);
    fs::remove_file(bed.path("f")).unwrap();
    fs::write(bed.path("g"), noise(2, 2 << 20)).unwrap();
    bed.umount();
    bed.mount("ro");
    assert!(fs::read(bed.path("g")).unwrap() == noise(2, 2 << 20));
    bed.umount();
}

/// Those who may write a file need not own it.
#[test]
fn times_of_others_files_are_kept() {
    if !can_mount() || !crate::testbed::is_root() || !have("setpriv") {
        return;
    }
    let mut bed = Bed::new("16M", &[], "writeback,allow_other");
    bed.shell("chmod 777 .; echo root > f; chmod 666 f; touch -d '2001-02-03 04:05:06.789 UTC' f");
    fs::set_permissions(bed.image.parent().unwrap(), fs::Permissions::from_mode(0o755)).unwrap();
    let held = File::options().write(true).open(bed.path("f")).unwrap();
    let as_user = |script: &str| {
        let script = format!("cd '{}' && {script}", bed.at.display());
        let args = ["--reuid=5000", "--regid=5000", "--clear-groups", "sh", "-c", &script];
        extant_testbed::command("setpriv").args(args).output().unwrap().status.success()
    };
    let modified = || fs::metadata(bed.path("f")).unwrap().mtime();
    assert!(!as_user("touch -d 2002-01-01 f") && !as_user("touch -md 2002-01-01 f"));
    assert!(as_user("mv f g && ln g f && rm g"));
    assert_eq!(modified(), 981_173_106);
    assert!(as_user("echo more >> f") && modified() > 981_173_106);
    bed.shell("touch -d '2001-02-03 04:05:06.789 UTC' f");
    assert!(as_user("truncate -s 3 f") && modified() > 981_173_106);
    bed.shell("touch -d '2001-02-03 04:05:06.789 UTC' f");
    assert!(as_user("touch f") && modified() > 981_173_106);
    assert!(as_user("echo own > own && chmod 600 own && sync own && touch -d 2002-01-01 own"));
    held.sync_all().unwrap();
    drop(held);
    assert_eq!(bed.shell("cat f"), "roo");
    bed.umount();
}

//! Contents of files, seen through system calls.

use crate::bed::{Bed, can_mount};
use crate::testbed::{have, noise};
use rustix::fs::{FallocateFlags, SeekFrom};
use std::fs::{self, File};
use std::io::{Seek, Write};
use std::os::unix::fs::{FileExt, MetadataExt};

#[test]
fn space_is_allocated_freed_and_found() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new("32M", &[], "");
    let path = bed.path("f");
    let bytes = noise(1, 300_000);
    fs::write(&path, &bytes).unwrap();
    let file = File::options().read(true).write(true).open(&path).unwrap();
    let allocate = |mode, at, len| rustix::fs::fallocate(&file, mode, at, len);
    let keep = FallocateFlags::KEEP_SIZE;
    allocate(FallocateFlags::PUNCH_HOLE | keep, 8192, 65536).unwrap();
    let mut expected = bytes.clone();
    expected[8192..8192 + 65536].fill(0);
    assert!(fs::read(&path).unwrap() == expected);
    let seek = |from| rustix::fs::seek(&file, from);
    assert_eq!(seek(SeekFrom::Hole(0)), Ok(8192));
    assert_eq!(seek(SeekFrom::Data(8192)), Ok(8192 + 65536));
    assert_eq!(seek(SeekFrom::Hole(100_000)), Ok(300_000));
    assert_eq!(seek(SeekFrom::Data(300_000)), Err(rustix::io::Errno::NXIO));
    allocate(FallocateFlags::ZERO_RANGE, 100_000, 250_000).unwrap();
    expected.truncate(100_000);
    expected.resize(350_000, 0);
    assert!(fs::read(&path).unwrap() == expected);
    allocate(keep, 1 << 20, 1 << 20).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().size(), 350_000);
    assert!(fs::metadata(&path).unwrap().blocks() * 512 > 1 << 20);
    file.set_len(50_000).unwrap();
    file.set_len(60_000).unwrap();
    expected.truncate(50_000);
    expected.resize(60_000, 0);
    assert!(fs::read(&path).unwrap() == expected);
    let copied = bed.path("copy");
    let to = File::create(&copied).unwrap();
    let mut done = 0;
    while done < 60_000 {
        let (mut from_at, mut to_at) = (done, done);
        let part =
            rustix::fs::copy_file_range(&file, Some(&mut from_at), &to, Some(&mut to_at), 60_000).unwrap();
        done += part as u64;
    }
    assert!(fs::read(&copied).unwrap() == expected);
    drop((file, to));
    bed.umount();
    bed.mount("ro");
    assert!(fs::read(&path).unwrap() == expected);
    bed.umount();
}

#[test]
fn writers_that_append_do_not_meet() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new("16M", &[], "");
    bed.shell(
        "for n in 1 2 3 4; do (for m in $(seq 200); do echo \"line $n $m of a writer\" >> log; done) & done; wait; \
         test $(sort -u log | wc -l) = 800; test $(wc -l < log) = 800",
    );
    // One that appends while another writes and a third cuts.
    let mut append = File::options().append(true).open(bed.path("log")).unwrap();
    let other = File::options().write(true).open(bed.path("log")).unwrap();
    other.set_len(10).unwrap();
    append.write_all(b"end").unwrap();
    other.write_all_at(b"LINE", 0).unwrap();
    assert_eq!(fs::read(bed.path("log")).unwrap()[..4], *b"LINE");
    assert_eq!(fs::metadata(bed.path("log")).unwrap().size(), 13);
    assert_eq!(append.stream_position().unwrap(), 13);
    drop((append, other));
    bed.umount();
}

#[test]
fn shared_mappings_are_written_back() {
    if !can_mount() || !have("python3") {
        return;
    }
    let mut bed = Bed::new("16M", &[], "");
    bed.python(
        "import mmap\n\
         f = open('m', 'w+b'); f.truncate(1 << 20)\n\
         a = mmap.mmap(f.fileno(), 1 << 20)\n\
         g = open('m', 'ab')\n\
         for n in range(0, 1 << 20, 4096): a[n:n+8] = n.to_bytes(8, 'little')\n\
         g.write(b'appended'); g.flush()\n\
         a.flush(); os.fsync(f.fileno())\n\
         d = open('m', 'rb').read()\n\
         assert len(d) == (1 << 20) + 8 and d[-8:] == b'appended'\n\
         assert all(d[n:n+8] == n.to_bytes(8, 'little') for n in range(0, 1 << 20, 4096))\n\
         b = mmap.mmap(os.open('m', os.O_RDONLY), 0, prot=mmap.PROT_READ)\n\
         os.pwrite(f.fileno(), b'new', 100)\n\
         assert b[100:103] == b'new'",
    );
    bed.umount();
    bed.mount("ro");
    bed.python(
        "d = open('m', 'rb').read()\n\
         assert len(d) == (1 << 20) + 8 and d[100:103] == b'new' and d[4096:4104] == (4096).to_bytes(8, 'little')",
    );
    bed.umount();
}

#[test]
fn a_full_volume_says_so_and_recovers() {
    if !can_mount() {
        return;
    }
    let mut bed = Bed::new("8M", &["-m", "0"], "");
    let bytes = noise(5, 16 << 20);
    let mut file = File::create(bed.path("f")).unwrap();
    let error = file.write_all(&bytes).unwrap_err();
    assert_eq!(error.raw_os_error(), Some(28));
    file.sync_all().unwrap();
    let written = fs::read(bed.path("f")).unwrap();
    assert!(written.len() > 1 << 20 && bytes.starts_with(&written));
    fs::remove_file(bed.path("f")).unwrap();
    drop(file);
    fs::write(bed.path("g"), &bytes[..2 << 20]).unwrap();
    bed.umount();
}

#[test]
fn direct_reads_see_what_was_written_and_fill_no_cache() {
    if !can_mount() || !have("python3") {
        return;
    }
    let mut bed = Bed::new("48M", &[], "");
    fs::write(bed.path("big"), noise(2, 8 << 20)).unwrap();
    bed.umount();
    bed.mount("");
    bed.python(
        r#"
import mmap
def cached():
    for line in os.getxattr(".", "system.extant.metrics").decode().splitlines():
        if line.startswith("extant_cache_used_bytes"):
            return int(float(line.split()[-1]))
def direct(fd, at, size):
    to = mmap.mmap(-1, size)
    return bytes(to[:os.preadv(fd, [to], at)])
buffered = os.open("big", os.O_RDWR)
raw = os.open("big", os.O_RDWR | os.O_DIRECT)
before = cached()
read = b"".join(direct(raw, at << 20, 1 << 20) for at in range(9))
assert cached() - before < 1 << 20, (before, cached())
assert len(read) == 8 << 20 and read == os.pread(buffered, 8 << 20, 0)
os.pwrite(buffered, b"new" * 1000, 5000)
assert direct(raw, 4096, 8192)[904:3904] == b"new" * 1000
page = mmap.mmap(-1, 4096)
page[:] = b"d" * 4096
os.pwritev(raw, [page], 8192)
assert direct(raw, 8192, 4096) == b"d" * 4096 == os.pread(buffered, 4096, 8192)
os.pwrite(buffered, b"end", (8 << 20) + 10000)
assert direct(raw, 8 << 20, 1 << 20) == bytes(10000) + b"end"
os.ftruncate(buffered, 6000)
assert direct(raw, 4096, 4096) == os.pread(buffered, 4096, 4096) and len(direct(raw, 4096, 4096)) == 1904
"#,
    );
    bed.umount();
}

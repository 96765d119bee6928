//! Tests layered devices by comparing them with a plain array of bytes.

use extant_block::{
    Bio, BioFlags, Buf, Device, FileDevice, FileOptions, IoErrorKind, Linear, MemDevice, Op, Part, Sector,
    Segment, Storage, StorageDevice, Stripe, execute,
};
use extant_rt::{RealConfig, Rt};
use extant_testbed::LoopDevice;
use parking_lot::Mutex;
use proptest::prelude::*;
use std::io::{self, IoSliceMut};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

#[derive(Clone, Debug)]
struct Request {
    op: Op,
    start: u64,
    sectors: u64,
    /// Where its memory is split: lengths in units of 512 bytes.
    cuts: Vec<u64>,
    fill: u8,
}

fn request(capacity: u64) -> impl Strategy<Value = Request> {
    let op = prop_oneof![Just(Op::Read), Just(Op::Write), Just(Op::WriteZeroes)];
    (op, 0..capacity, 1..64_u64, prop::collection::vec(1..8_u64, 1..6), any::<u8>()).prop_map(
        move |(op, start, sectors, cuts, fill)| Request {
            op,
            start,
            sectors: sectors.min(capacity - start),
            cuts,
            fill,
        },
    )
}

fn memory(request: &Request) -> Vec<Segment> {
    let mut left = request.sectors * 512;
    let mut segments = Vec::new();
    for cut in request.cuts.iter().cycle() {
        let n = left.min(cut * 500);
        let bytes: Vec<u8> = (0..n).map(|i| request.fill.wrapping_add((left - i) as u8)).collect();
        segments.push(Segment::from(Buf::from_slice(&bytes)));
        left -= n;
        if left == 0 {
            return segments;
        }
    }
    segments
}

/// Executes the requests on `device` and on an array, and compares.
fn behaves_like_an_array(device: &dyn Device, requests: &[Request]) {
    let rt = Rt::real(RealConfig::default());
    let mut array = vec![0_u8; device.limits().capacity_bytes as usize];
    for request in requests {
        let range = (request.start * 512) as usize..((request.start + request.sectors) * 512) as usize;
        let bio = match request.op {
            Op::Read | Op::Write => Bio::new(request.op, Sector(request.start), memory(request)),
            _ => Bio::range(request.op, Sector(request.start), request.sectors * 512),
        };
        let lengths: Vec<usize> = bio.segments.iter().map(Segment::len).collect();
        let before: Vec<u8> = bio.segments.iter().flat_map(|s| s.as_slice().to_vec()).collect();
        let mut bio = bio;
        if request.fill.is_multiple_of(3) && request.op == Op::Write {
            bio.flags = BioFlags::PREFLUSH | BioFlags::FUA;
        }
        let (mut bio, result) = rt.block_on(execute(device, bio)).unwrap();
        result.unwrap();
        assert_eq!(bio.start, Sector(request.start), "a bio comes back as it went");
        assert_eq!(bio.segments.iter().map(Segment::len).collect::<Vec<_>>(), lengths);
        match request.op {
            Op::Read => {
                let got: Vec<u8> = bio.segments.iter().flat_map(|s| s.as_slice().to_vec()).collect();
                assert!(got == array[range.clone()], "{request:?}");
                let mut here = vec![0; range.len()];
                let (some, rest) = here.split_at_mut(range.len() / 2);
                let parts = &mut [IoSliceMut::new(some), IoSliceMut::new(rest)];
                // A device may refuse a read that crosses from one part to the next; a bio then
                // reads it.
                if device.reads_here() && device.read_here(Sector(request.start), parts) {
                    assert!(here == array[range], "{request:?}");
                }
            }
            Op::Write => array[range].copy_from_slice(&before),
            _ => array[range].fill(0),
        }
        let memory = std::mem::take(&mut bio.segments);
        assert!(memory.into_iter().all(|s| s.into_buf().is_some()), "the memory comes back whole");
    }
}

const DISK_SECTORS: u64 = 256;

fn disks(n: usize) -> Vec<Arc<dyn Device>> {
    (0..n).map(|_| Arc::new(MemDevice::new(DISK_SECTORS as usize * 512)) as Arc<dyn Device>).collect()
}

/// A program's own storage.
struct Own(Mutex<Vec<u8>>);

impl Storage for Own {
    fn size(&self) -> u64 {
        self.0.lock().len() as u64
    }

    fn read_at(&self, at: u64, to: &mut [u8]) -> io::Result<()> {
        to.copy_from_slice(&self.0.lock()[at as usize..][..to.len()]);
        Ok(())
    }

    fn write_at(&self, at: u64, bytes: &[u8]) -> io::Result<()> {
        self.0.lock()[at as usize..][..bytes.len()].copy_from_slice(bytes);
        Ok(())
    }

    fn flush(&self) -> io::Result<()> {
        match self.0.lock()[0] {
            0xee => Err(io::Error::other("the vault is closed")),
            _ => Ok(()),
        }
    }
}

#[test]
fn a_storage_of_ones_own_fails_in_its_own_words() {
    let rt = Rt::real(RealConfig::default());
    let device = StorageDevice::new("vault", Own(Mutex::new(vec![0xee; 1000]))).on_threads_of(&rt);
    assert_eq!(device.limits().capacity_bytes, 512, "an incomplete sector is not used");
    let error = |op| {
        let bytes = if op == Op::Flush { 0 } else { 512 };
        rt.block_on(execute(&device, Bio::range(op, Sector(0), bytes))).unwrap().1.unwrap_err()
    };
    assert_eq!(error(Op::Flush).to_string(), "vault: flush of 0 bytes at sector 0: the vault is closed");
    assert_eq!(error(Op::Discard).kind, IoErrorKind::Unsupported);
    let mut beyond = [0; 512];
    let here = StorageDevice::new("vault", Own(Mutex::new(vec![0; 1000])));
    assert!(here.read_here(Sector(0), &mut [IoSliceMut::new(&mut beyond)]));
    assert!(!here.read_here(Sector(1), &mut [IoSliceMut::new(&mut beyond)]));
}

#[test]
fn storage_that_panics_fails_its_bios() {
    struct Broken;
    impl Storage for Broken {
        fn size(&self) -> u64 {
            4096
        }
        fn read_at(&self, _: u64, _: &mut [u8]) -> io::Result<()> {
            panic!("broken on purpose")
        }
    }
    let device = StorageDevice::new("vault", Broken);
    let error = pollster::block_on(extant_block::read(&device, Sector(0), 512)).unwrap_err();
    assert!(matches!(error.kind, IoErrorKind::Storage(_)), "{error}");
    assert!(!device.read_here(Sector(0), &mut [IoSliceMut::new(&mut [0; 512])]));
}

/// Miri checks the memory that pieces share; a few cases suffice, and take minutes.
const CASES: u32 = if cfg!(miri) { 4 } else { 256 };
const MOST_REQUESTS: usize = if cfg!(miri) { 4 } else { 20 };

proptest! {
    #![proptest_config(ProptestConfig { cases: CASES, failure_persistence: None, ..ProptestConfig::default() })]

    #[test]
    fn a_stripe_is_an_array(n in 1..5_usize, chunk in 1..9_u64, requests in prop::collection::vec(request(240), 1..MOST_REQUESTS)) {
        behaves_like_an_array(&Stripe::new("stripe", chunk, disks(n)).unwrap(), &requests);
    }

    #[test]
    fn a_storage_of_ones_own_is_an_array(requests in prop::collection::vec(request(240), 1..MOST_REQUESTS)) {
        let storage = Own(Mutex::new(vec![0; DISK_SECTORS as usize * 512]));
        behaves_like_an_array(&StorageDevice::new("own", storage), &requests);
    }

    #[test]
    fn a_linear_device_is_an_array(starts in prop::collection::vec(0..128_u64, 1..5), requests in prop::collection::vec(request(128), 1..MOST_REQUESTS)) {
        let parts = disks(starts.len()).into_iter().zip(&starts);
        let parts = parts.map(|(device, &start)| Part { device, start: Sector(start), sectors: DISK_SECTORS - start });
        behaves_like_an_array(&Linear::new("linear", parts.collect()).unwrap(), &requests);
    }
}

/// The kernel's dm-stripe over loop devices reads what our stripe wrote to the underlying files.
#[test]
fn the_kernel_agrees_on_the_layout_of_a_stripe() {
    let dir = tempfile::tempdir().unwrap();
    let paths: Vec<_> = (0..3).map(|i| dir.path().join(format!("disk{i}"))).collect();
    let devices = paths.iter().map(|path| {
        std::fs::File::create(path).unwrap().set_len(1 << 20).unwrap();
        Arc::new(FileDevice::open(path, FileOptions { write: true, direct: false }).unwrap())
            as Arc<dyn Device>
    });
    let stripe = Stripe::new("stripe", 16, devices.collect()).unwrap();
    let rt = Rt::real(RealConfig::default());
    let content: Vec<u8> =
        (0..stripe.limits().capacity_bytes).map(|i| (i / 512 * 31 + i % 13) as u8).collect();
    rt.block_on(extant_block::write(&stripe, Sector(0), Buf::from_slice(&content))).unwrap().unwrap();
    rt.block_on(extant_block::flush(&stripe)).unwrap().unwrap();

    let run = |command: &mut Command| {
        let output = command.output().ok()?;
        output.status.success().then(|| String::from_utf8_lossy(&output.stdout).trim().to_owned())
    };
    if !extant_testbed::can_mount() {
        return;
    }
    let loops: Vec<LoopDevice> = paths.iter().map(|path| LoopDevice::attach(path, &[]).unwrap()).collect();
    let name = format!("extant-stripe-{}", std::process::id());
    let targets: Vec<String> = loops.iter().map(|disk| format!("{} 0", disk.path().display())).collect();
    let table = format!("0 {} striped 3 16 {}", content.len() / 512, targets.join(" "));
    if run(Command::new("dmsetup").args(["create", &name, "--readonly", "--table", &table])).is_none() {
        return println!("skipped: no device mapper to be had here");
    }
    let seen = std::fs::read(Path::new("/dev/mapper").join(&name));
    run(Command::new("dmsetup").args(["remove", "--retry", &name]));
    assert!(seen.unwrap() == content);
}

#[test]
fn holes_show_through_a_linear_device() {
    let file = tempfile::NamedTempFile::new().unwrap();
    file.as_file().set_len(1 << 20).unwrap();
    std::os::unix::fs::FileExt::write_all_at(file.as_file(), &[1; 4096], 512 << 10).unwrap();
    let open = || Arc::new(FileDevice::open(file.path(), FileOptions::default()).unwrap()) as Arc<dyn Device>;
    let part = |start| Part { device: open(), start: Sector(start), sectors: 1024 };
    let linear = Linear::new("linear", vec![part(0), part(1024)]).unwrap();
    assert_eq!(linear.next_data(0).unwrap(), Some(512 << 10..(512 << 10) + 4096));
    assert_eq!(linear.next_data((512 << 10) + 4096).unwrap(), None);
}

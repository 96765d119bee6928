//! Checks volumes with e2fsck after a run.

use super::*;
use extant_block::Buf;
use extant_block::{Op, StreamId};
use extant_history::{BlockHost, elevator};
use extant_iosched::QueueConfig;
use extant_sim::disk::{Disks, ModelDisk};
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A volume of 128 MiB on the RAM disk.
fn volume_on_ram(fs: FileSystem) -> VolumeSpec {
    VolumeSpec {
        fs,
        bytes: 128 << 20,
        each_disk: false,
        chunk_bytes: None,
        disk: Some("ram".to_owned()),
        bytes_per_inode: None,
        inode_bytes: None,
        truncates: false,
        aged: None,
        stripe_blocks: 0,
        for_jobs: false,
    }
}

/// Returns the image that a job leaves on a RAM disk. Each write is an offset, a length, and
/// whether it is direct.
fn left_by(fs: FileSystem, writes: &[(u64, usize, bool)]) -> tempfile::NamedTempFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/turion-2010.toml");
    let settings = ["page_pin_ns", "page_unpin_ns"].map(|key| format!("{key} = 100\n")).concat();
    let text = std::fs::read_to_string(path).unwrap().replace("[costs]\n", &format!("[costs]\n{settings}"));
    let machine = Machine::parse("turion", &text).unwrap();
    let sim = Sim::new(machine, 1);
    let disks = Disks::attach(&sim);
    let queue = |disk: &Arc<ModelDisk>| {
        let elevator = elevator("none", &BlockHost::default()).unwrap();
        Arc::new(Queue::new(sim.rt(), disk.clone(), elevator, QueueConfig::default()))
    };
    let devices = disks.devices();
    let queues: Vec<_> = devices.iter().map(queue).collect();
    let memory = super::super::Memory::default();
    let cache =
        memory.cache(sim.rt(), None, super::super::memory::KernelParameters { cpus: 1, hz: 1000 }).unwrap();
    let spec = volume_on_ram(fs);
    let volume = Volumes::new(spec, FilePolicies::default(), true, &sim, &queues, Some(&cache)).unwrap();
    let file = volume.at(0).make_file(&sim, "/mnt/a file").unwrap().unwrap();
    for &(at, len, direct) in writes {
        let buffer = Buf::from_slice(&vec![7; len]);
        let write = file.transfer(sim.rt(), StreamId(1), Op::Write, at, buffer, direct);
        let (_, result) = sim.rt().block_on(write).unwrap();
        result.unwrap();
    }
    assert!(volume.counts().pieces > 0, "something reached the disk");
    drop(file);
    volume.close(&sim).unwrap();
    image_of(devices.last().unwrap())
}

/// Copies the first 128 MiB of a disk to a file.
fn image_of(disk: &ModelDisk) -> tempfile::NamedTempFile {
    let contents = disk.unload();
    let image = tempfile::NamedTempFile::new().unwrap();
    image.as_file().set_len(128 << 20).unwrap();
    let mut at = 0;
    while let Some(run) = contents.next_data(at) {
        let mut bytes = vec![0; (run.end - run.start) as usize];
        contents.read(run.start, &mut bytes);
        image.as_file().write_all_at(&bytes, run.start).unwrap();
        at = run.end;
    }
    image
}

/// Returns the contents of two disks with a volume each after the files were written concurrently,
/// in pieces, and with a low dirty limit.
fn left_on_two_disks(files: &[(&str, u64)]) -> Vec<tempfile::NamedTempFile> {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/jbod10-2011.toml");
    let text = std::fs::read_to_string(path).unwrap().replace("count = 10", "count = 2");
    let sim = Sim::new(Machine::parse("jbod", &text).unwrap(), 1);
    let rt = sim.rt();
    let disks = Disks::attach(&sim).devices();
    let queue = |disk: &Arc<ModelDisk>| {
        let elevator = elevator("cfq", &BlockHost::default()).unwrap();
        Arc::new(Queue::new(rt, disk.clone(), elevator, QueueConfig::default()))
    };
    let queues: Vec<_> = disks.iter().map(queue).collect();
    let memory = super::super::Memory {
        dirty_limit_bytes: Some(4 << 20),
        control: Some("linux-3.1".parse().unwrap()),
        ..super::super::Memory::default()
    };
    let cache = memory.cache(rt, None, super::super::memory::KernelParameters { cpus: 2, hz: 1000 }).unwrap();
    let spec = VolumeSpec { each_disk: true, disk: None, ..volume_on_ram(FileSystem::Ext4) };
    let volumes = Volumes::new(spec, FilePolicies::default(), false, &sim, &queues, Some(&cache)).unwrap();
    let writer = |(nth, (name, bytes)): (usize, &(&str, u64))| {
        let file = volumes.at(volumes.place_of(name).unwrap()).make_file(&sim, name).unwrap().unwrap();
        let (rt, bytes) = (rt.clone(), *bytes);
        let writes = async move {
            for at in (0..bytes).step_by(1 << 20) {
                let buffer = Buf::from_slice(&vec![7; (bytes - at).min(1 << 20) as usize]);
                let stream = StreamId(nth as u64 + 1);
                file.transfer(&rt, stream, Op::Write, at, buffer, false).await.1.unwrap();
            }
        };
        sim.rt().spawn("dd", Class::Normal, writes)
    };
    let writers: Vec<_> = files.iter().enumerate().map(writer).collect();
    writers.into_iter().for_each(|writer| rt.block_on(writer).unwrap().unwrap());
    let pieces = volumes.at(0).counts().pieces + volumes.at(1).counts().pieces;
    assert_eq!(volumes.counts().pieces, pieces, "those of both");
    volumes.close(&sim).unwrap();
    disks.iter().map(|disk| image_of(disk)).collect()
}

/// The files in the root directory of a volume image, with their sizes.
fn files_on(image: &Path) -> Vec<(String, u64)> {
    let rt = extant_rt::Rt::real(Default::default());
    let device = extant_block::FileDevice::open(image, extant_block::FileOptions::default()).unwrap();
    let device = Arc::new(device.driven_by(&rt));
    let read = async {
        let volume = Volume::open(device, Default::default()).await?;
        let root = volume.resolve(b"/", extant_fs::Follow::Yes).await?;
        let mut files = Vec::new();
        for entry in volume.list(&root).await? {
            let name = String::from_utf8_lossy(&entry.name).into_owned();
            if name.starts_with("_mnt_") {
                files.push((name, volume.inode(entry.inode).await?.size()));
            }
        }
        files.sort();
        Ok::<_, extant_fs::Error>(files)
    };
    rt.block_on(read).unwrap().unwrap()
}

#[test]
fn each_disk_has_a_clean_volume_with_the_files_whose_paths_name_it() {
    const MIB: u64 = 1 << 20;
    let files = [
        ("/mnt/sd0/a", 9 * MIB),
        ("/mnt/sd1/a", 7 * MIB + 4096),
        ("/mnt/sd1/b", 5 * MIB),
        ("/mnt/sd0/deep/b", MIB + 1),
    ];
    let images = left_on_two_disks(&files);
    let expected = [
        vec![("_mnt_sd0_a".to_owned(), 9 * MIB), ("_mnt_sd0_deep_b".to_owned(), MIB + 1)],
        vec![("_mnt_sd1_a".to_owned(), 7 * MIB + 4096), ("_mnt_sd1_b".to_owned(), 5 * MIB)],
    ];
    for (image, expected) in images.iter().zip(expected) {
        assert_eq!(files_on(image.path()), expected);
        check(image.path(), "ext4 on each disk");
    }
    let bytes = |images: &[tempfile::NamedTempFile]| -> Vec<Vec<u8>> {
        images.iter().map(|image| std::fs::read(image.path()).unwrap()).collect()
    };
    assert!(bytes(&images) == bytes(&left_on_two_disks(&files)), "the same files leave the same bytes");
}

#[test]
fn the_volumes_of_plain_jobs_have_their_files_and_are_clean() {
    const MIB: u64 = 1 << 20;
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/jbod10-2011.toml");
    let text = std::fs::read_to_string(path).unwrap().replace("count = 10", "count = 2");
    for fs in [FileSystem::Ext2, FileSystem::Ext3, FileSystem::Ext4] {
        let sim = Sim::new(Machine::parse("jbod", &text).unwrap(), 1);
        let rt = sim.rt();
        let disks = Disks::attach(&sim).devices();
        let queue = |disk: &Arc<ModelDisk>| {
            let elevator = elevator("none", &BlockHost::default()).unwrap();
            Arc::new(Queue::new(rt, disk.clone(), elevator, QueueConfig::default()))
        };
        let queues: Vec<_> = disks.iter().map(queue).collect();
        let memory = super::super::Memory::default();
        let cache =
            memory.cache(rt, None, super::super::memory::KernelParameters { cpus: 2, hz: 1000 }).unwrap();
        let spec = VolumeSpec::for_jobs(fs, Some(128 * MIB));
        let volumes =
            Volumes::new(spec, FilePolicies::default(), false, &sim, &queues, Some(&cache)).unwrap();
        assert_eq!(volumes.place_of("/mnt/any/file").unwrap(), 0, "such a path means the first disk");
        let volume = volumes.at(volumes.place_of("/mnt/sd1/x").unwrap());
        let [read, grown] =
            ["/mnt/sd1/read", "/mnt/sd1/written"].map(|name| volume.make_file(&sim, name).unwrap().unwrap());
        volume.prepare_file(&sim, &read, 5 * MIB + 4096, true, true).unwrap();
        volume.prepare_file(&sim, &grown, 3 * MIB, false, true).unwrap();
        let work = async {
            for at in (0..MIB).step_by(2300) {
                let buffer = Buf::from_slice(&[7; 2300]);
                grown.transfer(rt, StreamId(1), Op::Write, at, buffer, false).await.1.unwrap();
                grown.datasync(rt).await.unwrap();
            }
        };
        rt.block_on(work).unwrap();
        drop((read, grown));
        volumes.close(&sim).unwrap();
        let image = image_of(&disks[1]);
        let written = if fs == FileSystem::Ext4 { 3 * MIB } else { MIB.next_multiple_of(2300) };
        let expected =
            [("_mnt_sd1_read".to_owned(), 5 * MIB + 4096), ("_mnt_sd1_written".to_owned(), written)];
        assert_eq!(files_on(image.path()), expected, "{fs:?}");
        check(image.path(), &format!("{fs:?} of a plain job"));
    }
}

/// Checks that e2fsck, if installed, finds no errors.
fn check(image: &Path, of: &str) {
    if !Path::new("/usr/sbin/e2fsck").exists() {
        println!("skipped: no e2fsck");
        return;
    }
    let checked = std::process::Command::new("/usr/sbin/e2fsck").arg("-fn").arg(image).output().unwrap();
    assert!(checked.status.success(), "{of}: {}", String::from_utf8_lossy(&checked.stdout));
}

#[test]
fn e2fsck_finds_nothing_on_the_volumes_that_jobs_leave() {
    for fs in [FileSystem::Ext2, FileSystem::Ext3, FileSystem::Ext4] {
        let image = left_by(fs, &[(0, 6 << 20, true), (6 << 20, 5 << 20, false), (1 << 20, 8192, true)]);
        check(image.path(), &format!("{fs:?}"));
    }
}

#[test]
fn a_run_that_ends_with_dirty_files_on_volumes_gives_its_memory_back() {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/jbod10-2011.toml");
    let text = std::fs::read_to_string(path).unwrap().replace("count = 10", "count = 2");
    let machine = Machine::parse("jbod", &text).unwrap();
    let jobs = "[global]\nrw=write\nbs=1m\nsize=100m\nruntime=2\nnumjobs=2\n\
        [a]\ndirectory=/mnt/sd0\n[b]\ndirectory=/mnt/sd1\n";
    let jobs = crate::workload::fio::job_file("some.fio", jobs).unwrap();
    let spec = VolumeSpec { each_disk: true, disk: None, bytes: 1 << 30, ..volume_on_ram(FileSystem::Ext4) };
    let policy =
        crate::run::Policy { elevator: "cfq".parse().unwrap(), volume: Some(spec), ..Default::default() };
    let queues = Mutex::default();
    crate::run::on_target(&jobs, machine, &policy, 1, None, |target| {
        *queues.lock() = target.queues().iter().map(Arc::downgrade).collect::<Vec<_>>();
    })
    .unwrap();
    let queues = queues.into_inner();
    assert_eq!(queues.len(), 2);
    // The cache and the volumes hold references to the queues.
    assert!(queues.iter().all(|queue| queue.strong_count() == 0), "something still holds a queue of the run");
}

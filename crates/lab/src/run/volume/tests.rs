//! A volume in a world, looked at by e2fsck when the world has left it.

use super::*;
use extant_block::Buf;
use extant_block::{Op, StreamId};
use extant_history::{BlockHost, elevator};
use extant_iosched::QueueConfig;
use extant_sim::disk::Disks;
use std::os::unix::fs::FileExt;
use std::path::Path;

/// A machine with a disk of memory, and what a job leaves on it: written in these places, past the cache or through it.
fn left_by(fs: FileSystem, writes: &[(u64, usize, bool)]) -> tempfile::NamedTempFile {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../machines/turion-2010.toml");
    let settings = ["page_pin_ns", "page_unpin_ns"].map(|key| format!("{key} = 100\n")).concat();
    let text = std::fs::read_to_string(path).unwrap().replace("[costs]\n", &format!("[costs]\n{settings}"));
    let machine = Machine::parse("turion", &text).unwrap();
    let sim = Sim::new(machine, 1);
    let disks = Disks::attach(&sim);
    let queue = |disk: &Arc<extant_sim::disk::ModelDisk>| {
        let elevator = elevator("none", &BlockHost::default()).unwrap();
        Arc::new(Queue::new(sim.rt(), disk.clone(), elevator, QueueConfig::default()))
    };
    let devices = disks.devices();
    let queues: Vec<_> = devices.iter().map(queue).collect();
    let memory = super::super::Memory::default();
    let cache = memory.cache(sim.rt(), None, super::super::memory::Kernel { cpus: 1, hz: 1000 }).unwrap();
    let spec = VolumeSpec {
        fs,
        bytes: 128 << 20,
        chunk_bytes: None,
        disk: Some("ram".to_owned()),
        bytes_per_inode: None,
        inode_bytes: None,
        truncates: false,
        aged: None,
        stripe_blocks: 0,
    };
    let volume = OnMachine::new(spec, Policies::default(), true, &sim, &queues, Some(&cache)).unwrap();
    let file = volume.make_file(&sim, "/mnt/a file").unwrap().unwrap();
    for &(at, len, direct) in writes {
        let buffer = Buf::from_slice(&vec![7; len]);
        let write = file.transfer(sim.rt(), StreamId(1), Op::Write, at, buffer, direct);
        let (_, result) = sim.rt().block_on(write).unwrap();
        result.unwrap();
    }
    assert!(volume.counts().pieces > 0, "something reached the disk");
    drop(file);
    volume.close(&sim).unwrap();
    let contents = devices.last().unwrap().unload();
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

#[test]
fn e2fsck_finds_nothing_on_the_volumes_that_jobs_leave() {
    if !Path::new("/usr/sbin/e2fsck").exists() {
        println!("skipped: no e2fsck");
        return;
    }
    for fs in [FileSystem::Ext2, FileSystem::Ext3, FileSystem::Ext4] {
        let image = left_by(fs, &[(0, 6 << 20, true), (6 << 20, 5 << 20, false), (1 << 20, 8192, true)]);
        let checked =
            std::process::Command::new("/usr/sbin/e2fsck").arg("-fn").arg(image.path()).output().unwrap();
        assert!(checked.status.success(), "{fs:?}: {}", String::from_utf8_lossy(&checked.stdout));
    }
}

//! A modelled machine that jobs run on.

use super::RunError;
use super::file_span::{FileSpan, files_of, pages, span};
use super::memory::KernelParameters;
use super::policy::{Policy, QueueBounds};
use super::volume::{FilePolicies, FilesLayout, OnDevice, OnVolume, Volumes, command_bytes};
use crate::workload::fio::Job;
use extant_block::blktrace::Blktrace;
use extant_block::{Device, StreamId};
use extant_cache::{Disk, Mapping, PageCache};
use extant_history::BlockHost;
use extant_iosched::elevator::{DeadlineTunables, IoClass, Priority, ProgramId};
use extant_iosched::{Queue, QueueConfig, StreamInfo};
use extant_rt::{Nanos, Sink};
use extant_sim::disk::{DiskModel, Disks, ModelDisk};
use extant_sim::{Knobs, Machine, Sim};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// mq-deadline's parameters as set by an administrator.
fn deadline(knobs: &Knobs) -> DeadlineTunables {
    let default = DeadlineTunables::default();
    let ms = |set: Option<u32>, default| set.map_or(default, |ms| Nanos::from_millis(ms.into()));
    DeadlineTunables {
        read_expire: ms(knobs.read_expire, default.read_expire),
        write_expire: ms(knobs.write_expire, default.write_expire),
        writes_starved: knobs.writes_starved.unwrap_or(default.writes_starved),
        fifo_batch: knobs.fifo_batch.unwrap_or(default.fifo_batch),
        ..default
    }
}

/// A modelled machine with a queue in front of each disk, and a page cache if a job needs one.
pub(super) struct Modelled {
    pub(super) sim: Sim,
    queues: Vec<Arc<Queue>>,
    names: Vec<String>,
    cache: Option<(PageCache, Vec<Disk>)>,
    files: BTreeMap<String, ModelledFile>,
    /// Files that exist before the run because a job reads them.
    read: BTreeSet<String>,
    /// The length that the jobs need of each file.
    lengths: BTreeMap<String, u64>,
    /// Offset of the next file on each disk.
    free_bytes: Vec<u64>,
    volumes: Option<Volumes>,
    /// Bios of streams that have ended, and how many of them were merged.
    dismissed: Mutex<(u64, u64)>,
    /// Bytes written by streams that have ended.
    written_before: Arc<AtomicU64>,
    blktraces: Vec<Blktrace>,
}

#[derive(Clone)]
struct ModelledFile {
    /// Index of the disk, or of the volume for a file on one.
    disk: usize,
    start_byte: u64,
    length: u64,
    pages: Option<Mapping>,
    on_volume: Option<OnVolume>,
}

/// Major device number of modelled disks in blktraces: that of SCSI disks.
const BLKTRACE_MAJOR: u32 = 8;

fn blktrace(base: &Path, disk: &str, minor: u32) -> Result<Blktrace, RunError> {
    let path = PathBuf::from(format!("{}.{disk}", base.display()));
    Blktrace::create(&path, BLKTRACE_MAJOR, minor)
        .map_err(|error| RunError::file(&path.display().to_string(), &error))
}

/// Files occupy whole pages.
const PAGE_BYTES: u64 = 4096;

/// Files start at multiples of this: an ext4 block group with 4 KiB blocks.
const FILE_ALIGN: u64 = 128 << 20;

impl Modelled {
    pub(super) fn new(
        jobs: &[Job],
        machine: Machine,
        policy: &Policy,
        seed: u64,
        sink: Option<Arc<dyn Sink>>,
    ) -> Result<Self, RunError> {
        let sim = Sim::new(machine, seed);
        sim.rt().set_sink(sink);
        let disks = Disks::attach(&sim);
        if disks.is_empty() {
            return Err(RunError::NoDisks(sim.machine().name.clone()));
        }
        let kernel = sim.machine().kernel;
        let models = sim.machine().disks.iter().flat_map(|model| vec![model; model.count as usize]);
        let mut blktraces = Vec::new();
        let disk = |(minor, (disk, model)): (usize, (Arc<ModelDisk>, &DiskModel))| {
            let blktrace = match &policy.blktrace {
                Some(base) => Some(blktrace(base, &disk.limits().name, minor as u32)?),
                None => None,
            };
            blktraces.extend(blktrace.clone());
            let host = BlockHost {
                rotational: model.is_rotational(),
                hz: kernel.hz,
                slice_idle_ms: kernel.slice_idle_ms,
                deadline: deadline(&kernel.knobs),
            };
            let bounds = QueueBounds::new(policy.elevator, policy.requests, kernel.nr_requests, model)?;
            let config = QueueConfig {
                requests: bounds.requests,
                are_tags: extant_history::uses_tags(policy.elevator.name()),
                batching: extant_history::batching(policy.elevator.name())
                    .filter(|_| kernel.request_batching),
                depth: bounds.tags,
                blktrace,
                number: (BLKTRACE_MAJOR, minor as u32),
                ..QueueConfig::default()
            };
            Ok((disk as Arc<dyn Device>, host, config))
        };
        let all = disks.devices().into_iter().zip(models).enumerate().map(disk);
        let all = all.collect::<Result<Vec<_>, RunError>>()?;
        let queues = extant_history::disk_queues(sim.rt(), policy.elevator, all);
        let names = queues.iter().map(|queue| queue.limits().name.clone()).collect();
        let is_direct = jobs.iter().all(|job| job.direct);
        let cache = if is_direct && policy.volume.is_none() {
            None
        } else {
            let host = KernelParameters { cpus: sim.machine().processors.count as u32, hz: kernel.hz };
            let cache = policy.memory.cache_with(sim.rt(), sim.machine().memory, host, &kernel.knobs)?;
            // With a volume on each disk, the volumes attach their own devices to the cache. With a
            // single volume the disks are attached as well: their flushers affect the tables of
            // experiments that predate several volumes.
            let has_volumes = policy.volume.as_ref().is_some_and(|spec| spec.each_disk);
            let flat: &[Arc<Queue>] = if has_volumes { &[] } else { &queues };
            let disks = flat.iter().map(|queue| cache.attach(queue.clone())).collect();
            Some((cache, disks))
        };
        let read = files_of(jobs, |job| job.pattern.reads);
        let mut lengths = BTreeMap::new();
        for job in jobs {
            for process in 0..job.processes {
                let length: &mut u64 = lengths.entry(job.file_of(process)).or_default();
                *length = job.file_bytes().max(*length);
            }
        }
        let free_bytes = vec![0; queues.len()];
        let policies = FilePolicies { direct_io: policy.direct_io, allocator: policy.allocator };
        let pages = cache.as_ref().map(|(cache, _)| cache);
        let on_machine = |spec| Volumes::new(spec, policies, is_direct, &sim, &queues, pages);
        let volumes = policy.volume.clone().map(on_machine).transpose()?;
        Ok(Self {
            sim,
            queues,
            names,
            cache,
            files: BTreeMap::new(),
            read,
            lengths,
            free_bytes,
            volumes,
            dismissed: Mutex::default(),
            written_before: Arc::default(),
            blktraces,
        })
    }

    /// Returns where a process does its I/O.
    ///
    /// A file named like a disk (`/dev/sda`) is that whole disk. Any other file is on the disk that
    /// its path names (`/mnt/sda/file`), or else on the first.
    pub(super) fn place(&mut self, job: &Job, process: u32) -> Result<FileSpan, RunError> {
        let name = job.file_of(process);
        let file = match self.files.get(&name) {
            Some(file) => file.clone(),
            None => {
                let file = self.make(job, &name)?;
                self.files.insert(name.clone(), file.clone());
                file
            }
        };
        let (device, queues): (Arc<dyn Device>, _) = match &self.volumes {
            Some(volumes) => {
                let volume = volumes.at(file.disk);
                (volume.device().clone(), volume.queues().to_vec())
            }
            None => (self.queues[file.disk].clone(), vec![self.queues[file.disk].clone()]),
        };
        Ok(FileSpan {
            device,
            queues,
            command_bytes: command_bytes(self.sim.machine()),
            file_byte: file.start_byte,
            on_volume: file.on_volume,
            offset_bytes: job.offset_of(process),
            span_bytes: span(job, process, name, file.length)?,
            direct: job.direct,
            pages: file.pages,
        })
    }

    fn make(&mut self, job: &Job, name: &str) -> Result<ModelledFile, RunError> {
        if let Some(volumes) = &self.volumes {
            let disk = volumes.place_of(name)?;
            let volume = volumes.at(disk);
            let on_volume = volume.make_file(&self.sim, name)?;
            let is_theirs = on_volume.as_ref().is_some_and(|file| !file.is_ours());
            if is_theirs && (job.pattern.reads || job.is_asynchronous()) {
                let problem = format!(
                    "[{}]: jobs under a policy of history write to a volume, one I/O at a time",
                    job.name
                );
                return Err(RunError::Volume(problem));
            }
            if job.size_bytes() == 0 {
                return Err(RunError::NoSize(job.name.clone()));
            }
            let length = self.length_of(job, name);
            if length > volume.device().limits().capacity_bytes {
                return Err(RunError::Full { job: job.name.clone(), file: name.to_owned(), length });
            }
            if let Some(file) = &on_volume {
                let is_set_none = |(key, value): &(String, String)| {
                    key == "fallocate" && matches!(value.as_str(), "none" | "0")
                };
                let allocates = !job.given.iter().any(is_set_none);
                volume.prepare_file(&self.sim, file, length, self.read.contains(name), allocates)?;
            }
            return Ok(ModelledFile { disk, start_byte: 0, length, pages: None, on_volume });
        }
        let called = |part: &str| self.names.iter().position(|disk| disk == part);
        let whole = called(name.strip_prefix("/dev/").unwrap_or(name));
        let disk = whole.or_else(|| name.split('/').find_map(called)).unwrap_or(0);
        let (start_byte, length) = match whole {
            Some(disk) => (0, self.queues[disk].limits().capacity_bytes),
            None => self.room(job, name, disk)?,
        };
        // The last page may hold less than a block of the device.
        let room = if whole.is_some() { length } else { length.next_multiple_of(PAGE_BYTES) };
        let inode = self.files.len() as u64 + 1;
        let size = if whole.is_some() || self.read.contains(name) { length } else { 0 };
        let pages = self.cache.as_ref().map(|(_, disks)| pages(&disks[disk], start_byte, room, inode, size));
        Ok(ModelledFile { disk, start_byte, length, pages, on_volume: None })
    }

    /// Length of a file: what the longest of its jobs needs.
    fn length_of(&self, job: &Job, name: &str) -> u64 {
        self.lengths.get(name).copied().unwrap_or(0).max(job.file_bytes())
    }

    fn room(&mut self, job: &Job, name: &str, disk: usize) -> Result<(u64, u64), RunError> {
        if job.size_bytes() == 0 {
            return Err(RunError::NoSize(job.name.clone()));
        }
        let length = self.length_of(job, name);
        let start_byte = self.free_bytes[disk];
        if start_byte.saturating_add(length) > self.queues[disk].limits().capacity_bytes {
            return Err(RunError::Full { job: job.name.clone(), file: name.to_owned(), length });
        }
        self.free_bytes[disk] = (start_byte + length).next_multiple_of(FILE_ALIGN);
        Ok((start_byte, length))
    }

    /// Registers a process with the elevators.
    pub(super) fn introduce(&self, stream: StreamId, program: u64, job: &Job) {
        let class = match job.priority_class {
            1 => IoClass::RealTime,
            3 => IoClass::Idle,
            _ => IoClass::BestEffort,
        };
        let priority = Priority::new(class, job.priority);
        let info = StreamInfo { priority, program: ProgramId(program) };
        self.queues.iter().for_each(|queue| queue.set_stream(stream, info));
    }

    /// Bytes written by streams that have ended, whose accounts the queues no longer have.
    pub(super) fn written_before(&self) -> &Arc<AtomicU64> {
        &self.written_before
    }

    /// The disks' queues.
    pub(super) fn queues(&self) -> &[Arc<Queue>] {
        &self.queues
    }

    /// Discards dirty pages and frees the run's memory.
    ///
    /// The run has ended, and later I/O must not affect its figures. Volumes end as if power had
    /// failed.
    pub(super) fn close(self) -> Result<(), RunError> {
        let Self { sim, cache, files, volumes, blktraces, .. } = self;
        sim.rt().set_sink(None);
        for trace in &blktraces {
            trace.finish().map_err(|error| RunError::File("the blktrace".to_owned(), error.to_string()))?;
        }
        let Some((cache, _)) = cache else { return Ok(()) };
        if let Some(volumes) = volumes {
            drop((files, volumes));
            // The devices now refuse writes, so dirty data is dropped; the resulting error is
            // expected.
            let _ = sim.rt().block_on(cache.close())?;
            return Ok(());
        }
        let files: Vec<Mapping> = files.into_values().filter_map(|file| file.pages).collect();
        let forgotten = async {
            for file in files {
                file.set_size(0).await?;
            }
            cache.close().await
        };
        sim.rt().block_on(forgotten)?.map_err(|error| RunError::WriteBack(error.to_string()))
    }

    /// Removes a process that has ended.
    pub(super) fn dismiss(&self, stream: StreamId) {
        for stats in self.queues.iter().filter_map(|queue| queue.end_stream(stream)) {
            let mut dismissed = self.dismissed.lock();
            dismissed.0 += stats.bios;
            dismissed.1 += stats.merged;
            self.written_before.fetch_add(stats.written_bytes, Ordering::Relaxed);
        }
    }

    /// Writes back everything in the cache of the volumes.
    pub(super) fn drain(&self) -> Result<(), RunError> {
        self.volumes.as_ref().map_or(Ok(()), |volumes| volumes.drain(&self.sim))
    }

    /// Writes everything back, then returns the layout of the volumes' files and the time to read
    /// them.
    pub(super) fn reread(&self) -> Result<Option<FilesLayout>, RunError> {
        self.drain()?;
        let files = self.files.values().filter_map(|file| Some((file.disk, file.on_volume.as_ref()?)));
        self.volumes.as_ref().map(|volumes| volumes.reread(&self.sim, files)).transpose()
    }

    /// Counters of a run on volumes, so far.
    pub(super) fn counts(&self) -> Option<OnDevice> {
        let counts = self.volumes.as_ref()?.counts();
        let (mut bios, mut merged) = *self.dismissed.lock();
        for (_, stats) in self.queues.iter().flat_map(|queue| queue.stats()) {
            bios += stats.bios;
            merged += stats.merged;
        }
        Some(OnDevice { commands: bios - merged, ..counts })
    }
}

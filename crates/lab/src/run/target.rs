//! What jobs run on: a modelled machine, or files of the host.

use super::RunError;
use crate::fio::Job;
use crate::history;
use extant_block::elevator::{IoClass, Priority, ProgramId};
use extant_block::{Device, FileDevice, FileOptions, Queue, QueueConfig, StreamId, StreamInfo};
use extant_rt::Rt;
use extant_sim::disk::{Disks, ModelDisk};
use extant_sim::{Machine, Sim};
use parking_lot::Mutex;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// How requests are ordered on a modelled machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Policy {
    /// One of [`history::ELEVATORS`].
    pub elevator: String,
    /// Requests of each kind that the elevator sees (`nr_requests`).
    pub requests: usize,
}

impl Default for Policy {
    fn default() -> Self {
        Self { elevator: "none".into(), requests: 128 }
    }
}

/// Where a process does its I/O.
#[derive(Clone)]
pub(super) struct Place {
    pub(super) device: Arc<dyn Device>,
    pub(super) base_bytes: u64,
    pub(super) span_bytes: u64,
    /// Pages that reads have brought into memory; of modelled machines and without `direct` only.
    pages: Option<Arc<Mutex<Pages>>>,
}

/// A set of 4 KiB pages of a disk.
#[derive(Default)]
struct Pages(BTreeMap<u64, u64>);

impl Pages {
    fn each(start_byte: u64, bytes: u64) -> impl Iterator<Item = (u64, u64)> {
        (start_byte / 4096..(start_byte + bytes).div_ceil(4096)).map(|page| (page / 64, 1 << (page % 64)))
    }
}

impl Place {
    /// Whether a read finds all it wants in memory.
    pub(super) fn cached(&self, start_byte: u64, bytes: u64) -> bool {
        self.pages.as_ref().is_some_and(|pages| {
            let pages = pages.lock();
            Pages::each(start_byte, bytes)
                .all(|(word, bit)| pages.0.get(&word).is_some_and(|bits| bits & bit != 0))
        })
    }

    /// A read has ended: its pages stay in memory. Says whether there is memory for them.
    pub(super) fn keep(&self, start_byte: u64, bytes: u64) -> bool {
        let Some(pages) = &self.pages else { return false };
        let mut pages = pages.lock();
        Pages::each(start_byte, bytes).for_each(|(word, bit)| *pages.0.entry(word).or_default() |= bit);
        true
    }
}

/// A modelled machine with a queue before each of its disks.
pub(super) struct Modelled {
    pub(super) sim: Sim,
    queues: Vec<Arc<Queue>>,
    names: Vec<String>,
    pages: Vec<Arc<Mutex<Pages>>>,
    /// Files by name: where they begin on the first disk, and how long they are.
    files: BTreeMap<String, (u64, u64)>,
    /// Where the next file goes.
    free_byte: u64,
}

/// Files begin at multiples of this: the size of an ext4 block group of 4 KiB blocks.
const FILE_ALIGN: u64 = 128 << 20;

impl Modelled {
    pub(super) fn new(machine: Machine, policy: &Policy, seed: u64) -> Result<Self, RunError> {
        let sim = Sim::new(machine, seed);
        let disks = Disks::attach(&sim);
        if disks.is_empty() {
            return Err(RunError::NoDisks(sim.machine().name.clone()));
        }
        let depths =
            sim.machine().disks.iter().flat_map(|model| vec![model.queue_depth(); model.count as usize]);
        let queue = |(disk, depth): (Arc<ModelDisk>, usize)| {
            let elevator = history::elevator(&policy.elevator)?;
            let config = QueueConfig { requests: policy.requests, depth, ..QueueConfig::default() };
            Ok(Arc::new(Queue::new(sim.rt(), disk, elevator, config)))
        };
        let queues: Vec<_> =
            disks.devices().into_iter().zip(depths).map(queue).collect::<Result<_, RunError>>()?;
        let names = queues.iter().map(|queue| queue.limits().name.clone()).collect();
        let pages = queues.iter().map(|_| Arc::default()).collect();
        Ok(Self { sim, queues, names, pages, files: BTreeMap::new(), free_byte: 0 })
    }

    /// The place of a process: a whole disk if the file is called like one, a file on the first disk otherwise.
    pub(super) fn place(&mut self, job: &Job, process: u32) -> Result<Place, RunError> {
        if job.pattern.writes && !job.direct {
            return Err(RunError::Buffered(job.name.clone()));
        }
        let file = job.file_of(process);
        let disk = self.names.iter().position(|name| file.strip_prefix("/dev/").unwrap_or(&file) == name);
        let (disk, base, length) = match disk {
            Some(disk) => (disk, 0, self.queues[disk].limits().capacity_bytes),
            None => {
                let (base, length) = self.file(job, &file)?;
                (0, base, length)
            }
        };
        let rest = length.saturating_sub(job.offset_bytes);
        let span_bytes = job.span_bytes(rest);
        if span_bytes < job.block_bytes {
            return Err(RunError::TooSmall { job: job.name.clone(), file, length });
        }
        let pages = (!job.direct).then(|| self.pages[disk].clone());
        let device = self.queues[disk].clone();
        Ok(Place { device, base_bytes: base + job.offset_bytes, span_bytes, pages })
    }

    fn file(&mut self, job: &Job, file: &str) -> Result<(u64, u64), RunError> {
        let length = job.offset_bytes + job.size_bytes;
        if let Some((base, had)) = self.files.get(file) {
            return Ok((*base, *had));
        }
        if job.size_bytes == 0 {
            return Err(RunError::NoSize(job.name.clone()));
        }
        let base = self.free_byte;
        if base + length > self.queues[0].limits().capacity_bytes {
            return Err(RunError::Full { job: job.name.clone(), file: file.to_owned(), length });
        }
        self.free_byte = (base + length).next_multiple_of(FILE_ALIGN);
        self.files.insert(file.to_owned(), (base, length));
        Ok((base, length))
    }

    /// Tells the elevators about a process.
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

    /// The process has ended.
    pub(super) fn dismiss(&self, stream: StreamId) {
        for queue in &self.queues {
            let _ = queue.end_stream(stream);
        }
    }
}

/// Files of the host.
pub(super) struct Real {
    pub(super) rt: Rt,
    open: BTreeMap<(String, bool), Arc<FileDevice>>,
    /// Files that some job writes to.
    written: BTreeSet<String>,
}

impl Real {
    pub(super) fn new(jobs: &[Job]) -> Self {
        let writers = jobs.iter().filter(|job| job.pattern.writes);
        let written =
            writers.flat_map(|job| (0..job.processes).map(|process| job.file_of(process))).collect();
        Self { rt: Rt::real(Default::default()), open: BTreeMap::new(), written }
    }

    pub(super) fn place(&mut self, job: &Job, process: u32) -> Result<Place, RunError> {
        if let Some((key, _)) = job.given.iter().find(|(key, _)| matches!(key.as_str(), "prio" | "prioclass"))
        {
            return Err(RunError::NotOnFiles { job: job.name.clone(), key: key.clone() });
        }
        let file = job.file_of(process);
        let problem = |error: std::io::Error| RunError::File(file.clone(), error.to_string());
        let key = (file.clone(), job.direct);
        let device = match self.open.get(&key) {
            Some(device) => device.clone(),
            None => {
                let path = Path::new(&file);
                lay_out(path, job).map_err(problem)?;
                let options = FileOptions { write: self.written.contains(&file), direct: job.direct };
                let device = FileDevice::open(path, options).map_err(problem)?.driven_by(&self.rt);
                let device = Arc::new(device);
                self.open.insert(key, device.clone());
                device
            }
        };
        let length = device.limits().capacity_bytes;
        let rest = length.saturating_sub(job.offset_bytes);
        let span_bytes = job.span_bytes(rest);
        if span_bytes < job.block_bytes {
            return Err(RunError::TooSmall { job: job.name.clone(), file, length });
        }
        Ok(Place { device, base_bytes: job.offset_bytes, span_bytes, pages: None })
    }
}

/// Makes the file as long as the job wants it, and fills what is missing: holes would read faster than data.
fn lay_out(path: &Path, job: &Job) -> std::io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    let wanted = job.offset_bytes + job.size_bytes;
    // Without a size the job takes the file as it is.
    if job.size_bytes == 0 || path.metadata().is_ok_and(|found| !found.is_file() || found.len() >= wanted) {
        return Ok(());
    }
    let mut file = std::fs::OpenOptions::new().write(true).create(true).truncate(false).open(path)?;
    let mut at = file.seek(SeekFrom::End(0))?;
    let mut rng = extant_rt::Rng::labelled(at, "layout");
    let chunk: Vec<u8> = (0..1 << 17).flat_map(|_| rng.next_u64().to_le_bytes()).collect();
    while at < wanted {
        let len = (chunk.len() as u64).min(wanted - at);
        file.write_all(&chunk[..len as usize])?;
        at += len;
    }
    file.sync_all()
}

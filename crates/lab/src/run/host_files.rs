//! Host files that jobs run on.

use super::file_span::{FileSpan, files_of, pages, span};
use super::memory::{KernelParameters, Memory};
use super::{MOST_THREADS, RunError};
use crate::workload::fio::Job;
use extant_block::{Claim, Device, FileDevice, FileOptions, ForeignLocks};
use extant_cache::{Mapping, PageCache};
use extant_rt::{RealConfig, Rt, Sink};
use std::collections::btree_map::Entry;
use std::collections::{BTreeMap, BTreeSet};
use std::path::Path;
use std::sync::Arc;

/// Host files as the target of jobs.
pub(super) struct HostFiles {
    pub(super) rt: Rt,
    cache: Option<PageCache>,
    direct: BTreeMap<String, Arc<FileDevice>>,
    cached: BTreeMap<String, Mapping>,
    /// Files that a job writes to.
    written: BTreeSet<String>,
    /// Locks on those files, by device and inode: jobs may name a file in several ways.
    claims: BTreeMap<(u64, u64), Claim>,
}

impl HostFiles {
    pub(super) fn new(jobs: &[Job], memory: &Memory, sink: Option<Arc<dyn Sink>>) -> Result<Self, RunError> {
        let processes = jobs.iter().map(|job| job.processes as usize).sum::<usize>();
        let blocking_threads = Some(processes.clamp(1, MOST_THREADS));
        let rt = Rt::real(RealConfig { blocking_threads, ..RealConfig::default() });
        rt.set_sink(sink);
        let cpus = std::thread::available_parallelism().map_or(1, |n| n.get() as u32);
        let cache = match jobs.iter().all(|job| job.direct) {
            true => None,
            false => Some(memory.cache(&rt, None, KernelParameters { cpus, hz: 1000 })?),
        };
        let written = files_of(jobs, |job| job.pattern.writes);
        Ok(Self {
            rt,
            cache,
            direct: BTreeMap::new(),
            cached: BTreeMap::new(),
            written,
            claims: BTreeMap::new(),
        })
    }

    pub(super) fn place(&mut self, job: &Job, process: u32) -> Result<FileSpan, RunError> {
        if let Some((key, _)) = job.given.iter().find(|(key, _)| matches!(key.as_str(), "prio" | "prioclass"))
        {
            return Err(RunError::NotOnFiles { job: job.name.clone(), key: key.clone() });
        }
        let file = job.file_of(process);
        let device = match self.direct.get(&file) {
            Some(device) => device.clone(),
            None => {
                let device = self.open(job, &file).map_err(|error| RunError::file(&file, &error))?;
                self.direct.insert(file.clone(), device.clone());
                device
            }
        };
        let length = device.limits().capacity_bytes;
        if let (Some(cache), false) = (&self.cache, self.cached.contains_key(&file)) {
            let inode = self.cached.len() as u64 + 1;
            let pages = pages(&cache.attach(device.clone()), 0, length, inode, length);
            self.cached.insert(file.clone(), pages);
        }
        let device_bytes = device.limits().max_bytes;
        Ok(FileSpan {
            device,
            queues: Vec::new(),
            command_bytes: device_bytes,
            file_byte: 0,
            offset_bytes: job.offset_of(process),
            pages: self.cached.get(&file).cloned(),
            on_volume: None,
            span_bytes: span(job, process, file, length)?,
            direct: job.direct,
        })
    }

    /// Opens a file for direct I/O even if the job does not ask for it: a job that wants a page
    /// cache uses ours, not the host's. A file to be written is claimed as by any other writer of
    /// images.
    fn open(&mut self, job: &Job, file: &str) -> std::io::Result<Arc<FileDevice>> {
        let path = Path::new(file);
        let write = self.written.contains(file);
        let mut claim = None;
        if let Ok(found) = path.metadata()
            && found.is_file()
            && (write || is_short(path, job))
            && !self.claims.contains_key(&identity(&found))
        {
            claim = Some(FileDevice::claim_to_replace(path, ForeignLocks::Honour)?);
        }
        lay_out(path, job)?;
        let device = FileDevice::open(path, FileOptions { write, direct: true })?.driven_by(&self.rt);
        if write {
            let key = identity(&path.metadata()?);
            if let Entry::Vacant(place) = self.claims.entry(key) {
                place.insert(match claim {
                    Some(claim) => claim,
                    None => device.claim().map_err(|error| std::io::Error::other(error.kind))?,
                });
            }
        }
        Ok(Arc::new(device))
    }

    /// Writes back what is still dirty.
    pub(super) fn close(self) -> Result<(), RunError> {
        let Some(cache) = self.cache else { return Ok(()) };
        drop(self.cached);
        self.rt.block_on(cache.close())?.map_err(|error| RunError::WriteBack(error.to_string()))
    }
}

fn identity(found: &std::fs::Metadata) -> (u64, u64) {
    use std::os::unix::fs::MetadataExt;
    (found.dev(), found.ino())
}

/// Whether a job needs a longer file. Without a size it uses the file as it is.
fn is_short(path: &Path, job: &Job) -> bool {
    let wanted = job.file_bytes();
    job.size_bytes() > 0 && !path.metadata().is_ok_and(|found| !found.is_file() || found.len() >= wanted)
}

/// Extends the file to the length that the job needs. Fills it with data, because holes would read
/// faster.
fn lay_out(path: &Path, job: &Job) -> std::io::Result<()> {
    use std::io::{Seek, SeekFrom, Write};
    let wanted = job.file_bytes();
    if !is_short(path, job) {
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

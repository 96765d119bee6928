//! Volumes on modelled machines.
//!
//! ext volumes are real: made, opened and closed by the same code as on disks. Other file systems
//! exist only as the maps that historical policies need.

mod aged;
mod bios_in_flight;
mod contents;
mod device;
mod placed_files;
mod reread;
#[cfg(test)]
mod tests;
mod volume_file;
mod volumes_on_disks;

pub use aged::Aged;
pub use reread::FilesLayout;
pub(super) use volume_file::OnVolume;
pub(super) use volumes_on_disks::Volumes;

use super::RunError;
use contents::EmptyVolume;
use device::{PieceCount, PinnedPages};
use extant_block::{Device, Sector, read, write};
use extant_cache::PageCache;
use extant_fs::{Caller, FileOptions, Volume, WriteOptions};
use extant_history::alloc::{FreeSpace, Work, on_disk};
use extant_history::direct::{BlockMap, Cost, Ext3Map, Kernel, Sent, XfsMap};
use extant_history::{Choice, MakeAllocator, MakeDirect};
use extant_iosched::Queue;
use extant_rt::{Class, Rt, Task};
use extant_sim::disk::DiskKind;
use extant_sim::{Machine, Sim};
use parking_lot::Mutex;
use placed_files::PlacedFiles;
use serde::Deserialize;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use volume_file::{LinuxFile, OurFile};

/// A file system.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum FileSystem {
    /// None: each file is a single extent of the device.
    None,
    /// A real volume with block maps and without a journal.
    Ext2,
    /// A real volume with block maps.
    Ext3,
    /// A real volume with extents.
    Ext4,
    /// A model of the layout, for historical policies only.
    Xfs,
}

/// The volume that holds the files of a workload's jobs.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct VolumeSpec {
    /// The file system.
    pub fs: FileSystem,
    /// Size in bytes.
    pub bytes: u64,
    /// Puts such a volume on each of the machine's disks, under a shared page cache. A file is on
    /// the volume of the disk that its path names (`/mnt/sda/file`).
    #[serde(default)]
    pub each_disk: bool,
    /// Stripes the volume over all disks in chunks of this many bytes; if not given, it is on one
    /// disk.
    pub chunk_bytes: Option<u64>,
    /// The name of that disk; if not given, the first disk.
    pub disk: Option<String>,
    /// Bytes per inode, if different from today's mke2fs.
    pub bytes_per_inode: Option<u64>,
    /// Size of an inode in bytes; 256 if not given.
    pub inode_bytes: Option<u16>,
    /// Each pass over a file first writes it back, then truncates it, like a program that opens it
    /// with `O_TRUNC`. ext4 starts this write-back when a truncated file is closed (mount option
    /// `auto_da_alloc`).
    #[serde(default)]
    pub truncates: bool,
    /// Fragments the free space; if not given, the volume starts empty.
    pub aged: Option<Aged>,
    /// Stripe width in blocks for historical allocators (`stripe=`); 0 if not given.
    #[serde(default)]
    pub stripe_blocks: u64,
    /// Made by [`VolumeSpec::for_jobs`]. Files that jobs read are filled first, those that they
    /// only write are preallocated unless the job says `fallocate=none`, and a path that names no
    /// disk means the first disk.
    #[serde(skip)]
    pub for_jobs: bool,
}

/// Historical policies for a volume's files; ours where `None`.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct FilePolicies {
    pub(crate) direct_io: Option<Choice<MakeDirect>>,
    pub(crate) allocator: Option<Choice<MakeAllocator>>,
}

impl VolumeSpec {
    /// For plain jobs: a new volume on each of the machine's disks, as large as the disk if `bytes`
    /// is not given.
    pub fn for_jobs(fs: FileSystem, bytes: Option<u64>) -> Self {
        Self {
            fs,
            bytes: bytes.unwrap_or(0),
            each_disk: true,
            chunk_bytes: None,
            disk: None,
            bytes_per_inode: None,
            inode_bytes: None,
            truncates: false,
            aged: None,
            stripe_blocks: 0,
            for_jobs: true,
        }
    }

    /// Describes the first inconsistent setting, if any.
    pub(crate) fn fault(&self) -> Option<String> {
        let problem = match self {
            Self { each_disk: true, chunk_bytes: Some(_), .. } => {
                "each_disk: chunk_bytes makes one volume over all disks; leave chunk_bytes out"
            }
            Self { each_disk: true, disk: Some(_), .. } => {
                "each_disk: disk makes one volume on one disk; leave disk out"
            }
            Self { each_disk: true, fs: FileSystem::None | FileSystem::Xfs, .. } => {
                "each_disk: needs a real file system; give ext2, ext3 or ext4 as fs"
            }
            Self { each_disk: true, stripe_blocks: 1.., .. } => {
                "each_disk: only historical allocators use stripe_blocks, on one volume; leave it out"
            }
            Self { bytes: 0, for_jobs: false, .. } => "bytes: must be above 0",
            Self { chunk_bytes: Some(_), disk: Some(_), .. } => {
                "chunk_bytes: makes one volume over all disks; leave disk out"
            }
            _ => return None,
        };
        Some(problem.to_owned())
    }

    /// Describes the first of a row's policies that does not work with this volume.
    pub(crate) fn fault_with(&self, policies: FilePolicies) -> Option<String> {
        let direct_io = policies.direct_io.map(|policy| ("direct_io", policy.name()));
        let named = direct_io.or(policies.allocator.map(|policy| ("allocator", policy.name())));
        let (key, name) = named.filter(|_| self.each_disk)?;
        Some(format!(
            "{key}: \"{name}\" does not use the page cache that several volumes share; leave {key} out"
        ))
    }
}

/// Allocation groups of an xfs volume (default of mkfs.xfs before 2.9).
const XFS_GROUPS: u64 = 16;
const BLOCK_BYTES: u64 = 4096;

/// Counters of a run on a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct OnDevice {
    /// Bios sent by Linux's direct I/O, by cause.
    pub sent: Sent,
    /// Bios that reached the disks' queues; for a striped device, pieces of the bios above it.
    pub pieces: u64,
    /// Commands that the queues made of them.
    pub commands: u64,
    /// Work of searches by a historical allocator, and the number of searches.
    pub search: (Work, u64),
    /// Groups of the volume that the allocator searches.
    pub groups: u64,
}

/// A volume of a modelled machine.
pub(super) struct OnMachine {
    spec: VolumeSpec,
    /// The device under the volume.
    device: Arc<dyn Device>,
    pieces: PieceCount,
    kernel: Kernel,
    /// The queues of the disks below.
    queues: Vec<Arc<Queue>>,
    empty: Option<Arc<EmptyVolume>>,
    ours: Option<Volume>,
    linux: Option<extant_history::direct::Direct>,
    placed: Option<(Arc<PlacedFiles>, u64)>,
    sent: Arc<Mutex<Sent>>,
}

impl OnMachine {
    /// Copies the new volume to the machine's disks and opens it.
    fn new(
        spec: VolumeSpec,
        empty: Option<Arc<EmptyVolume>>,
        policies: FilePolicies,
        is_direct: bool,
        sim: &Sim,
        queues: &[Arc<Queue>],
        cache: Option<&PageCache>,
    ) -> Result<Self, RunError> {
        let failed = |problem: String| RunError::Volume(problem);
        let rt = sim.rt();
        let machine = sim.machine();
        let pieces = PieceCount::default();
        let page_bytes = u64::from(machine.kernel.page_bytes);
        let linux = policies.direct_io.map(|policy| policy.make()());
        // Linux's direct I/O pins pages while it goes through a request; ours pins them with their
        // bio.
        let pages = is_direct.then_some(PinnedPages { bytes: page_bytes, are_pinned: linux.is_some() });
        let kinds = machine.disks.iter().flat_map(|model| vec![&model.kind; model.count as usize]);
        let disks: Vec<_> =
            queues.iter().cloned().zip(kinds.map(|kind| matches!(kind, DiskKind::Ram(_)))).collect();
        let device = device::below(rt, &disks, &pieces, &spec, pages).map_err(failed)?;
        if device.limits().capacity_bytes < spec.bytes {
            let problem = format!("its {} bytes do not fit {}", spec.bytes, device.limits().name);
            return Err(RunError::Volume(problem));
        }
        if let Some(empty) = &empty {
            let load = async {
                for (at, bytes) in &empty.data {
                    write(&*device, *at, extant_block::Buf::from_slice(bytes)).await?;
                }
                if spec.for_jobs {
                    // The jobs' first sync must not have to write the volume itself from the disk's
                    // cache.
                    extant_block::flush(&*device).await?;
                }
                Ok::<(), extant_block::IoError>(())
            };
            rt.block_on(load)?.map_err(|error| RunError::Volume(error.to_string()))?;
        }
        let mut ours = None;
        if linux.is_none() && empty.is_some() {
            let cache = cache.ok_or_else(|| failed("it needs a page cache".to_owned()))?;
            let disk = cache.attach(device.clone());
            let opened = rt.block_on(Volume::open_writable(rt, &disk, WriteOptions::default()))?;
            let volume = opened.map_err(|error| failed(error.to_string()))?;
            if let Some(aged) = &spec.aged {
                rt.block_on(aged.apply(&volume))?.map_err(|error| failed(error.to_string()))?;
            }
            ours = Some(volume);
        }
        let mut placed = None;
        if let (Some(allocator), Some(volume)) =
            (policies.allocator, ours.take_if(|_| policies.allocator.is_some()))
        {
            rt.block_on(volume.close())?.map_err(|error| failed(error.to_string()))?;
            let read = |at: u64, len: usize| -> Result<Vec<u8>, String> {
                // Read whole sectors around the wanted bytes.
                let (from, until) = (at / 512, (at + len as u64).div_ceil(512));
                let bytes = read(&*device, Sector(from), ((until - from) * 512) as usize);
                let bytes = rt.block_on(bytes).map_err(|error| error.to_string())?;
                let bytes = bytes.map_err(|error| error.to_string())?;
                let begin = (at - from * 512) as usize;
                Ok(bytes[begin..begin + len].to_vec())
            };
            let (free, geometry) = on_disk::free_of(&read).map_err(failed)?;
            let allocator =
                allocator.make()(&FreeSpace { geometry, free, stripe_blocks: spec.stripe_blocks });
            let files = PlacedFiles::new(allocator, device.clone(), geometry.first_block);
            placed = Some((Arc::new(files), geometry.groups));
        }
        if linux.is_none() && spec.fs == FileSystem::Xfs {
            return Err(failed(
                "only the layout of xfs is modelled; give direct_io, a historical policy".to_owned(),
            ));
        }
        let wait = |work: Cost| machine.price(work).unwrap_or_default();
        let kernel = Kernel {
            page_bytes,
            command_bytes: command_bytes(machine),
            chunk_bytes: spec.chunk_bytes,
            map_wait: wait(Cost::MapWait(1)),
            placeholder_wait: wait(Cost::PlaceholderWait(1)),
        };
        let is_below = |queue: &&Arc<Queue>| match (spec.chunk_bytes, &spec.disk) {
            (None, Some(disk)) => queue.limits().name == *disk,
            _ => true,
        };
        let most = if spec.chunk_bytes.is_some() { usize::MAX } else { 1 };
        let queues = queues.iter().filter(is_below).take(most).cloned().collect();
        Ok(Self { spec, device, pieces, kernel, queues, empty, ours, linux, placed, sent: Arc::default() })
    }

    /// The queues of the disks below.
    pub(super) fn queues(&self) -> &[Arc<Queue>] {
        &self.queues
    }

    /// Prepares a new file of this length: fills it if a job reads it; if jobs only write it,
    /// preallocates it on ext4 if requested. Like fio, leaves it empty where preallocation is not
    /// supported.
    pub(super) fn prepare_file(
        &self,
        sim: &Sim,
        file: &OnVolume,
        bytes: u64,
        is_read: bool,
        allocates: bool,
    ) -> Result<(), RunError> {
        let allocates = allocates && self.spec.for_jobs && self.spec.fs == FileSystem::Ext4;
        // Entering the world advances its time, which would change the experiments' figures.
        if !is_read && !allocates {
            return Ok(());
        }
        let work = async { if is_read { file.lay_out(bytes).await } else { file.allocate(bytes).await } };
        sim.rt().block_on(work)?.map_err(RunError::Volume)
    }

    /// The device, for jobs without a file system.
    pub(super) fn device(&self) -> &Arc<dyn Device> {
        &self.device
    }

    /// Creates a file of this name; `None` on a device without a file system.
    pub(super) fn make_file(&self, sim: &Sim, name: &str) -> Result<Option<OnVolume>, RunError> {
        if let Some(policy) = self.linux {
            let map: Box<dyn BlockMap> = match (self.empty.as_deref(), self.spec.fs) {
                (Some(empty), FileSystem::Ext2 | FileSystem::Ext3) => {
                    Box::new(Ext3Map::new(empty.free.iter().cloned(), BLOCK_BYTES))
                }
                (_, FileSystem::Xfs | FileSystem::None) => {
                    let unit = self.spec.chunk_bytes.unwrap_or(BLOCK_BYTES) / BLOCK_BYTES;
                    let groups = if self.spec.fs == FileSystem::Xfs { XFS_GROUPS } else { 1 };
                    Box::new(XfsMap::new(self.spec.bytes / BLOCK_BYTES, groups, unit, BLOCK_BYTES))
                }
                (_, fs) => {
                    let problem =
                        format!("direct I/O of Linux 2.6.19 has no map of {fs:?}; give ext3 or xfs");
                    return Err(RunError::Volume(problem));
                }
            };
            let device = self.device.clone();
            let file = LinuxFile::new(policy, device, self.kernel.clone(), map, self.sent.clone());
            return Ok(Some(OnVolume::Linux(Arc::new(file))));
        }
        if let Some((files, _)) = &self.placed {
            return Ok(Some(OnVolume::Placed(files.make())));
        }
        let Some(volume) = &self.ours else { return Ok(None) };
        let name: String = name.chars().map(|c| if c == '/' { '_' } else { c }).collect();
        let open = async {
            let caller = Caller::root();
            let node = volume.root_node().await?.create(&caller, name.as_bytes(), 0o644).await?;
            node.open(&caller, FileOptions::default())
        };
        let opened = sim.rt().block_on(open)?.map_err(|error| RunError::Volume(error.to_string()))?;
        let file = OurFile::new(opened, &self.spec);
        Ok(Some(OnVolume::Ours(Arc::new(file))))
    }

    /// The counters so far, without commands.
    fn counts(&self) -> OnDevice {
        let placed = self.placed.as_ref();
        OnDevice {
            sent: *self.sent.lock(),
            pieces: self.pieces.load(Ordering::Relaxed),
            commands: 0,
            search: placed.map(|(files, _)| files.work()).unwrap_or_default(),
            groups: placed.map_or(0, |(_, groups)| *groups),
        }
    }

    /// Starts a task that writes back everything cached for the files and makes it durable.
    fn start_drain(&self, rt: &Rt) -> Task<Result<(), String>> {
        let (placed, ours) = (self.placed.as_ref().map(|(files, _)| files.clone()), self.ours.clone());
        let inside = rt.clone();
        rt.spawn("flusher", Class::Normal, async move {
            match (placed, ours) {
                (Some(files), _) => files.write_back(&inside).await,
                (None, Some(volume)) => volume.sync().await.map_err(|error| error.to_string()),
                (None, None) => Ok(()),
            }
        })
    }

    /// Closes the volume, which leaves it clean.
    #[cfg(test)]
    fn close(self, sim: &Sim) -> Result<(), RunError> {
        match self.ours {
            Some(volume) => {
                sim.rt().block_on(volume.close())?.map_err(|error| RunError::Volume(error.to_string()))
            }
            None => Ok(()),
        }
    }
}

/// The longest command that all disks accept.
pub(super) fn command_bytes(machine: &Machine) -> u64 {
    machine.disks.iter().map(|disk| disk.max_command_bytes).min().unwrap_or(u64::MAX)
}

//! The volumes of a run: a single one, on one disk or striped over all, or one on each disk.

use super::{FilePolicies, FilesLayout, OnDevice, OnMachine, OnVolume, VolumeSpec, contents};
use crate::run::RunError;
use extant_block::Device;
use extant_cache::PageCache;
use extant_iosched::Queue;
use extant_sim::Sim;
use std::collections::BTreeMap;
use std::collections::btree_map::Entry;
use std::sync::Arc;

/// The volumes of a run.
pub(in crate::run) struct Volumes {
    all: Vec<OnMachine>,
    /// The disk of each volume, if each disk has one; otherwise empty.
    disks: Vec<String>,
    /// Whether a path that names no disk means the first disk.
    falls_back: bool,
}

/// A volume that fills its disk ends at a multiple of this.
const UNIT: u64 = 1 << 20;

impl Volumes {
    /// Makes the volumes on the machine's disks, all with the same contents, and opens them.
    pub(in crate::run) fn new(
        spec: VolumeSpec,
        policies: FilePolicies,
        is_direct: bool,
        sim: &Sim,
        queues: &[Arc<Queue>],
        cache: Option<&PageCache>,
    ) -> Result<Self, RunError> {
        if let Some(problem) = spec.fault().or_else(|| spec.fault_with(policies)) {
            return Err(RunError::Volume(problem));
        }
        let mut empty_volumes = BTreeMap::new();
        let mut empty = |spec: &VolumeSpec| match empty_volumes.entry(spec.bytes) {
            Entry::Occupied(empty) => Ok::<_, RunError>(Option::clone(empty.get())),
            Entry::Vacant(place) => {
                let empty = contents::make(spec).map_err(RunError::Volume)?.map(Arc::new);
                Ok(place.insert(empty).clone())
            }
        };
        let mut on = |spec: VolumeSpec| {
            let empty = empty(&spec)?;
            OnMachine::new(spec, empty, policies, is_direct, sim, queues, cache)
        };
        let falls_back = spec.for_jobs;
        if !spec.each_disk {
            return Ok(Self { all: vec![on(spec)?], disks: Vec::new(), falls_back });
        }
        let disks: Vec<String> = queues.iter().map(|queue| queue.limits().name.clone()).collect();
        let mut all = Vec::new();
        for queue in queues {
            let limits = queue.limits();
            let bytes = if spec.bytes == 0 { limits.capacity_bytes / UNIT * UNIT } else { spec.bytes };
            let disk = Some(limits.name.clone());
            all.push(on(VolumeSpec { each_disk: false, disk, bytes, ..spec.clone() })?);
        }
        Ok(Self { all, disks, falls_back })
    }

    /// Index of the volume that holds a file.
    pub(in crate::run) fn place_of(&self, name: &str) -> Result<usize, RunError> {
        if self.disks.is_empty() {
            return Ok(0);
        }
        let called = |part: &str| self.disks.iter().position(|disk| disk == part);
        let whole = name.strip_prefix("/dev/").unwrap_or(name);
        if called(whole).is_some() {
            let problem =
                format!("{name} is a disk that has a volume; give a file on it, such as /mnt/{whole}/file");
            return Err(RunError::Volume(problem));
        }
        let named = name.split('/').find_map(called);
        named.or(self.falls_back.then_some(0)).ok_or_else(|| {
            let known = self.disks.join(", ");
            RunError::Volume(format!("the path {name} names none of the disks that have volumes: {known}"))
        })
    }

    /// The volume with this index.
    pub(in crate::run) fn at(&self, place: usize) -> &OnMachine {
        &self.all[place]
    }

    /// Writes back everything cached for the volumes' files and makes it durable, on all volumes in
    /// parallel.
    pub(in crate::run) fn drain(&self, sim: &Sim) -> Result<(), RunError> {
        let rt = sim.rt();
        let tasks: Vec<_> = self.all.iter().map(|volume| volume.start_drain(rt)).collect();
        let all = async {
            for task in tasks {
                task.await.map_err(|error| error.to_string())??;
            }
            Ok(())
        };
        rt.block_on(all)?.map_err(RunError::Volume)
    }

    /// Returns the layout of files that were written back, and the time to read them one after the
    /// other past the cache.
    ///
    /// Each file comes with the index of its volume.
    pub(in crate::run) fn reread<'a>(
        &self,
        sim: &Sim,
        files: impl Iterator<Item = (usize, &'a OnVolume)>,
    ) -> Result<FilesLayout, RunError> {
        let rt = sim.rt();
        let all = async {
            let mut layout = FilesLayout::default();
            for (place, file) in files {
                let runs = file.runs().await.map_err(|error| error.to_string())?;
                let device = self.all[place].device();
                layout.read(rt, &**device, &runs).await.map_err(|error| error.to_string())?;
            }
            Ok(layout)
        };
        rt.block_on(all)?.map_err(RunError::Volume)
    }

    /// The counters so far, without commands.
    pub(in crate::run) fn counts(&self) -> OnDevice {
        // With several volumes, no historical policy runs on them, so all other counters are zero.
        let pieces = self.all.iter().map(|volume| volume.counts().pieces).sum();
        OnDevice { pieces, ..self.all.first().map(OnMachine::counts).unwrap_or_default() }
    }

    /// Closes the volumes, which leaves them clean.
    #[cfg(test)]
    pub(super) fn close(self, sim: &Sim) -> Result<(), RunError> {
        self.all.into_iter().try_for_each(|volume| volume.close(sim))
    }
}

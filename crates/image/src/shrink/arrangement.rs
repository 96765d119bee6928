//! Placement on the smaller volume.

use super::renumber::Numbers;
use super::survey::{Found, Survey};
use crate::layout::{
    FileMap, Geometry, Headroom, LogicalRun, Misfit, Own, Params, Planned, Run, Short, Space, smallest_for,
};
use crate::{BuildError, JournalSize, SizePolicy};
use extant_format::{Compat, FileBlock, Incompat, InodeNumber, Superblock, Timestamp, UintExt, VolumeBlock};

/// Minimum length of a log that jbd2 accepts, in blocks.
const JOURNAL_BLOCKS_MIN: u32 = 1024;

/// Layout of the smaller volume.
#[derive(Debug)]
pub(super) struct Arrangement {
    pub(super) params: Params,
    /// Parameters for files that are mapped by block pointers.
    pub(super) indirect: Params,
    pub(super) geometry: Geometry,
    pub(super) own: Own,
    /// Attribute blocks, in the order of the survey.
    pub(super) attrs: Vec<Run>,
    /// Locations, by index of the inode in the survey.
    places: Vec<Place>,
    /// New number of each inode of the survey.
    numbers: Vec<InodeNumber>,
    /// By number: one more than the inode's index in the survey; 0 for a free inode.
    inodes: Vec<u32>,
}

/// Location of an inode's blocks.
#[derive(Clone, Debug)]
enum Place {
    Nowhere,
    /// A single run starting at file block 0, without map blocks.
    Run(VolumeBlock),
    Map(Box<FileMap>),
}

impl Planned for Arrangement {
    fn geometry(&self) -> &Geometry {
        &self.geometry
    }
}

impl Arrangement {
    /// The smallest volume that holds everything in the survey.
    pub(super) fn smallest(sb: &Superblock, survey: &Survey) -> Result<Self, BuildError> {
        let params = params(sb, survey);
        let mut indirect = params.clone();
        indirect.incompat -= Incompat::EXTENTS;
        let first = sb.first_inode();
        let own = first.0 - 1;
        let needed = own + survey.inodes.iter().filter(|found| found.number >= first).count().fit_u32();
        // A few more inodes than are needed, as in a newly built volume.
        let wanted = (u64::from(needed) + u64::from(needed) / 32 + 16).min(sb.inodes_count().into());
        let lay_out = |blocks| Self::lay_out(&params, &indirect, survey, blocks, wanted);
        let mut arrangement = smallest_for(&params, survey.blocks, Headroom::NONE, lay_out)?;
        let has_pointers = survey.inodes.iter().any(|found| found.is_mapped() && !found.has_extents);
        if has_pointers && arrangement.geometry.sb.blocks_count() > u64::from(u32::MAX) {
            return Err(BuildError::Options("a map of pointers reaches 2^32 blocks only".into()));
        }
        arrangement.number(survey, first);
        Ok(arrangement)
    }

    fn lay_out(
        params: &Params,
        indirect: &Params,
        survey: &Survey,
        blocks: u64,
        inodes: u64,
    ) -> Result<Self, Misfit> {
        let mut geometry = Geometry::of(params, blocks, inodes)?;
        let own = Own::place(&mut geometry, params, blocks)?;
        if let Some(missing) = survey.blocks.checked_sub(geometry.space.free() + 1) {
            return Err(Short { missing: missing + 1 }.into());
        }
        let mut places = vec![Place::Nowhere; survey.inodes.len()];
        let mut place = |space: &mut Space, wanted: fn(&Found) -> bool| -> Result<(), Short> {
            for (place, found) in places.iter_mut().zip(&survey.inodes).filter(|(_, found)| wanted(found)) {
                let params = if found.has_extents { params } else { indirect };
                *place = Place::take(space, &logical_runs(survey, found), params)?;
            }
            Ok(())
        };
        // Directories, attributes and symbolic links go together, as in a newly built volume.
        place(&mut geometry.space, |found| found.role.is_name())?;
        let attrs = geometry.space.take_runs(survey.attrs.len().to_u64())?;
        place(&mut geometry.space, |found| !found.role.is_name())?;
        Ok(Self {
            params: params.clone(),
            indirect: indirect.clone(),
            geometry,
            own,
            attrs,
            places,
            numbers: Vec::new(),
            inodes: Vec::new(),
        })
    }

    /// Inodes keep their numbers if the smaller tables have them; the others get free ones, in
    /// order.
    fn number(&mut self, survey: &Survey, first: InodeNumber) {
        let count = self.geometry.sb.inodes_count();
        let mut inodes = vec![0; count.to_usize() + 1];
        for (index, found) in (1..).zip(&survey.inodes) {
            if found.number.0 <= count {
                inodes[found.number.0.to_usize()] = index;
            }
        }
        let mut free = first.0;
        let numbers = survey.inodes.iter().zip(1..).map(|(found, index)| {
            if found.number.0 <= count {
                return found.number;
            }
            while inodes[free.to_usize()] != 0 {
                free += 1;
            }
            inodes[free.to_usize()] = index;
            InodeNumber(free)
        });
        self.numbers = numbers.collect();
        self.inodes = inodes;
    }

    /// The new number of an inode of the survey.
    pub(super) fn number_of(&self, index: usize) -> InodeNumber {
        self.numbers[index]
    }

    /// The survey's inode with this new number; `None` for a free one.
    pub(super) fn index_of(&self, number: InodeNumber) -> Option<usize> {
        self.inodes
            .get(number.0.to_usize())
            .and_then(|index| index.checked_sub(1))
            .map(|index| index.to_usize())
    }

    /// The map of an inode of the survey.
    pub(super) fn map_of(&self, survey: &Survey, index: usize) -> FileMap {
        match &self.places[index] {
            Place::Nowhere => FileMap::default(),
            Place::Run(start) => {
                let blocks = survey.runs_of(&survey.inodes[index]).iter().map(|run| run.blocks).sum();
                FileMap::single(*start, blocks)
            }
            Place::Map(map) => FileMap::clone(map),
        }
    }

    /// Parameters for this inode's kind of map.
    pub(super) fn params_of(&self, found: &Found) -> &Params {
        if found.has_extents { &self.params } else { &self.indirect }
    }
}

impl Place {
    fn take(space: &mut Space, runs: &[LogicalRun], params: &Params) -> Result<Self, Short> {
        if runs.is_empty() {
            return Ok(Self::Nowhere);
        }
        let map = FileMap::take(space, runs, params)?;
        Ok(match (&map.data[..], map.meta.is_empty()) {
            ([run], true) if run.logical == FileBlock(0) && !run.unwritten => Self::Run(run.physical),
            _ => Self::Map(Box::new(map)),
        })
    }
}

/// Maps old inode numbers to new ones.
pub(super) struct NewNumbers<'a> {
    pub(super) survey: &'a Survey,
    pub(super) arrangement: &'a Arrangement,
}

impl Numbers for NewNumbers<'_> {
    fn new_number(&self, old: InodeNumber) -> Option<InodeNumber> {
        self.survey.index_of(old).map(|index| self.arrangement.number_of(index))
    }
}

/// Runs of a file that are not holes; adjacent ones are merged.
fn logical_runs(survey: &Survey, found: &Found) -> Vec<LogicalRun> {
    let mut runs: Vec<LogicalRun> = Vec::new();
    for run in survey.runs_of(found) {
        match runs.last_mut() {
            Some(last) if last.end() == u64::from(run.logical.0) && last.unwritten == run.unwritten => {
                last.blocks += run.blocks;
            }
            _ => runs.push(LogicalRun { start: run.logical, blocks: run.blocks, unwritten: run.unwritten }),
        }
    }
    runs
}

fn params(sb: &Superblock, survey: &Survey) -> Params {
    let mut params = Params {
        block: sb.block_size(),
        inode_size: sb.inode_size(),
        group_blocks: sb.blocks_per_group(),
        compat: sb.compat(),
        incompat: sb.incompat(),
        ro_compat: sb.ro_compat(),
        size: SizePolicy::Exact,
        inodes: None,
        bytes_per_inode: 0,
        reserved_milli_percent: 0,
        journal: JournalSize::Auto,
        label: sb.raw().s_volume_name,
        uuid: sb.uuid(),
        hash_seed: [0; 16],
        created: Timestamp::default(),
    };
    params.journal = match &survey.journal {
        None => JournalSize::None,
        // The fast-commit area is part of the log, whose size was chosen to allow for it.
        Some(journal) if sb.compat().contains(Compat::FAST_COMMIT) => JournalSize::Blocks(journal.blocks()),
        Some(journal) => {
            let usual = params.journal_blocks(survey.blocks).unwrap_or(JOURNAL_BLOCKS_MIN);
            JournalSize::Blocks(usual.min(journal.blocks()))
        }
    };
    params
}

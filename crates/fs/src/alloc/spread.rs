//! Chooses the group of a new inode, and where its data should begin.
//!
//! Directories are spread by Orlov's scheme (the Linux kernel's *ext4 Data Structures and
//! Algorithms*, "Orlov allocator"): top-level ones far apart, others near their parents unless it
//! is crowded there. Files go to the flexible group of their directory.

use extant_format::{FileKind, Group, InodeNumber, Superblock, VolumeBlock};

/// Counters of a group or flexible group, the basis for placement.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct GroupCounts {
    pub(crate) free_inodes: u64,
    pub(crate) free_clusters: u64,
    pub(crate) used_dirs: u64,
}

/// The shape of a volume, as needed for placement.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Shape {
    groups: u32,
    /// Groups per flexible group; 1 without `flex_bg`.
    flex: u32,
    inodes_per_group: u32,
    clusters_per_group: u32,
}

/// The inode to place.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Wanted {
    /// A directory in the root or in a directory with the flag `TOPDIR`, with a hash of its name.
    TopDirectory(u32),
    /// Any other directory.
    Directory,
    /// Anything else.
    File,
}

/// Where to start looking.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Parent {
    pub(crate) inode: InodeNumber,
    pub(crate) group: Group,
    /// The group where the parent's last new inode was placed.
    pub(crate) last: Option<Group>,
}

impl Shape {
    pub(crate) fn new(sb: &Superblock) -> Self {
        let log = u32::from(sb.raw().s_log_groups_per_flex);
        let flexible = sb.incompat().contains(extant_format::Incompat::FLEX_BG);
        Self {
            groups: sb.group_count(),
            flex: if flexible { 1 << log.min(31) } else { 1 },
            inodes_per_group: sb.inodes_per_group(),
            clusters_per_group: sb.clusters_per_group(),
        }
    }

    fn flex_groups(&self) -> u32 {
        self.groups.div_ceil(self.flex)
    }

    fn groups_of(&self, flex: u32) -> impl Iterator<Item = Group> + use<> {
        (flex * self.flex..(flex + 1).saturating_mul(self.flex).min(self.groups)).map(Group)
    }

    /// The group for a new inode, or `None` if no group has a free one. `total` is the sum over all
    /// groups.
    pub(crate) fn place(
        &self,
        wanted: Wanted,
        parent: Parent,
        total: GroupCounts,
        counts: impl Fn(Group) -> GroupCounts,
    ) -> Option<Group> {
        let with_inodes = |group: &Group| counts(*group).free_inodes > 0;
        let group = match wanted {
            Wanted::File if self.flex > 1 => {
                let near = [Some(parent.group), parent.last].into_iter().flatten();
                let near = near.map(|group| self.groups_of(group.0 / self.flex).find(with_inodes));
                near.flatten().next().or_else(|| self.orlov(None, parent, total, &counts))
            }
            Wanted::File => self.hashed(parent, &counts),
            Wanted::Directory => self.orlov(None, parent, total, &counts),
            Wanted::TopDirectory(hash) => self.orlov(Some(hash), parent, total, &counts),
        };
        let from = parent.group.0;
        group.or_else(|| (0..self.groups).map(|n| Group((from + n) % self.groups)).find(with_inodes))
    }

    fn orlov(
        &self,
        top: Option<u32>,
        parent: Parent,
        total: GroupCounts,
        counts: &impl Fn(Group) -> GroupCounts,
    ) -> Option<Group> {
        let flexes = self.flex_groups();
        let sum = |flex: u32| {
            self.groups_of(flex).map(counts).fold(GroupCounts::default(), |sum, group| GroupCounts {
                free_inodes: sum.free_inodes + group.free_inodes,
                free_clusters: sum.free_clusters + group.free_clusters,
                used_dirs: sum.used_dirs + group.used_dirs,
            })
        };
        let average = GroupCounts {
            free_inodes: total.free_inodes / u64::from(flexes),
            free_clusters: total.free_clusters / u64::from(flexes),
            used_dirs: total.used_dirs / u64::from(flexes),
        };
        let within = |flex| self.groups_of(flex).find(|&group| counts(group).free_inodes > 0);
        if let Some(hash) = top {
            let roomy = (0..flexes).map(|n| (hash % flexes + n) % flexes).map(|flex| (flex, sum(flex)));
            let roomy = roomy.filter(|(_, flex)| {
                flex.free_inodes > 0
                    && flex.free_inodes >= average.free_inodes
                    && flex.free_clusters >= average.free_clusters
            });
            if let Some((flex, _)) = roomy.min_by_key(|(_, flex)| flex.used_dirs) {
                return within(flex);
            }
        }
        let (inodes, blocks) = (u64::from(self.inodes_per_group), u64::from(self.clusters_per_group));
        let flex = u64::from(self.flex);
        let dirs_max = average.used_dirs + inodes * flex / 16;
        let inodes_min = average.free_inodes.saturating_sub(inodes * flex / 4).max(1);
        let blocks_min = average.free_clusters.saturating_sub(blocks * flex / 4);
        let start = parent.last.unwrap_or(parent.group).0 / self.flex;
        let near = (0..flexes).map(|n| (start + n) % flexes).find(|&flex| {
            let flex = sum(flex);
            flex.used_dirs < dirs_max && flex.free_inodes >= inodes_min && flex.free_clusters >= blocks_min
        });
        near.and_then(within)
    }

    /// Placement without flexible groups: the parent's group, then one derived from the parent, so
    /// that files from crowded directories in one group do not all spill into the same next group.
    fn hashed(&self, parent: Parent, counts: &impl Fn(Group) -> GroupCounts) -> Option<Group> {
        let with_room = |group: Group| {
            let counts = counts(group);
            counts.free_inodes > 0 && counts.free_clusters > 0
        };
        if with_room(parent.group) {
            return Some(parent.group);
        }
        let mut at = (parent.group.0.wrapping_add(parent.inode.0)) % self.groups;
        let mut step = 1;
        while step < self.groups {
            at = (at + step) % self.groups;
            if with_room(Group(at)) {
                return Some(Group(at));
            }
            step <<= 1;
        }
        None
    }

    /// The group where the first data of an inode should go. In flexible groups of at least four
    /// groups, the first group is left to directories and special files.
    pub(crate) fn data_group(&self, inode_group: Group, kind: Option<FileKind>) -> Group {
        if self.flex < 4 {
            return inode_group;
        }
        let first = inode_group.0 / self.flex * self.flex;
        let regular = kind == Some(FileKind::Regular) && first + 1 < self.groups;
        Group(first + u32::from(regular))
    }

    /// The first block of [`Self::data_group`].
    pub(crate) fn data_goal(
        &self,
        sb: &Superblock,
        inode: InodeNumber,
        kind: Option<FileKind>,
    ) -> VolumeBlock {
        let group = sb.locate_inode(inode).map_or(Group(0), |(group, _)| group);
        sb.group_first_block(self.data_group(group, kind))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const INODES: u64 = 1024;

    struct Model {
        shape: Shape,
        groups: Vec<GroupCounts>,
    }

    impl Model {
        fn new(groups: u32, flex: u32) -> Self {
            let empty = GroupCounts { free_inodes: INODES, free_clusters: 8192, used_dirs: 0 };
            Self {
                shape: Shape { groups, flex, inodes_per_group: INODES as u32, clusters_per_group: 8192 },
                groups: vec![empty; groups as usize],
            }
        }

        fn create(&mut self, wanted: Wanted, parent: u32) -> Option<u32> {
            let total = self.groups.iter().fold(GroupCounts::default(), |sum, group| GroupCounts {
                free_inodes: sum.free_inodes + group.free_inodes,
                free_clusters: sum.free_clusters + group.free_clusters,
                used_dirs: sum.used_dirs + group.used_dirs,
            });
            let parent = Parent { inode: InodeNumber(2), group: Group(parent), last: None };
            let at = self.shape.place(wanted, parent, total, |group| self.groups[group.0 as usize])?;
            let group = &mut self.groups[at.0 as usize];
            group.free_inodes -= 1;
            group.used_dirs += u64::from(wanted != Wanted::File);
            Some(at.0)
        }
    }

    #[test]
    fn top_directories_are_spread_evenly_and_files_stay_with_them() {
        let mut model = Model::new(64, 16);
        for n in 0..80u32 {
            model.create(Wanted::TopDirectory(n.wrapping_mul(0x9e37_79b9)), 0).unwrap();
        }
        let dirs: Vec<u64> =
            model.groups.chunks(16).map(|flex| flex.iter().map(|group| group.used_dirs).sum()).collect();
        assert!(dirs.iter().all(|&n| (15..=25).contains(&n)), "{dirs:?}");
        assert_eq!(model.create(Wanted::File, 33), Some(32), "inodes are packed into the first group");
        assert_eq!(model.create(Wanted::Directory, 33), Some(32));
    }

    #[test]
    fn every_inode_can_be_had_and_no_more() {
        for flex in [1, 4, 16] {
            let mut model = Model::new(10, flex);
            for n in 0..10 * INODES as u32 {
                let wanted = [Wanted::File, Wanted::Directory, Wanted::TopDirectory(n)][n as usize % 3];
                assert!(model.create(wanted, n % 10).is_some(), "inode {n} of flex {flex}");
            }
            assert_eq!(model.create(Wanted::File, 0), None);
        }
    }

    #[test]
    fn a_full_group_without_flex_bg_sends_files_elsewhere() {
        let mut model = Model::new(8, 1);
        model.groups[3].free_clusters = 0;
        let elsewhere = model.create(Wanted::File, 3).unwrap();
        assert_ne!(elsewhere, 3);
        assert_eq!(model.create(Wanted::File, 4), Some(4));
    }

    #[test]
    fn data_of_files_begin_in_the_second_group_of_four() {
        let shape = Model::new(64, 16).shape;
        assert_eq!(shape.data_group(Group(17), Some(FileKind::Regular)), Group(17));
        assert_eq!(shape.data_group(Group(16), Some(FileKind::Regular)), Group(17));
        assert_eq!(shape.data_group(Group(19), Some(FileKind::Directory)), Group(16));
        assert_eq!(Model::new(64, 2).shape.data_group(Group(19), Some(FileKind::Regular)), Group(19));
        assert_eq!(Model::new(17, 16).shape.data_group(Group(16), Some(FileKind::Regular)), Group(16));
    }
}

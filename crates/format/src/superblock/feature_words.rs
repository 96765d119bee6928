//! Feature words, and the revision that introduced them.

use super::Superblock;
use crate::{Compat, Incompat, RoCompat};

/// `s_rev_level` of volumes with features and variable inode size (`EXT4_DYNAMIC_REV`).
const DYNAMIC_REVISION: u32 = 1;

impl Superblock {
    /// `s_rev_level`: 0 is the original format.
    pub fn rev_level(&self) -> u32 {
        self.raw.s_rev_level.get()
    }

    /// `s_feature_compat`. Revision 0 does not define feature words, but Linux and e2fsck honour
    /// them anyway.
    pub fn compat(&self) -> Compat {
        Compat::from_bits_retain(self.raw.s_feature_compat.get())
    }

    /// `s_feature_incompat`; see [`Self::compat`].
    pub fn incompat(&self) -> Incompat {
        Incompat::from_bits_retain(self.raw.s_feature_incompat.get())
    }

    /// `s_feature_ro_compat`; see [`Self::compat`].
    pub fn ro_compat(&self) -> RoCompat {
        RoCompat::from_bits_retain(self.raw.s_feature_ro_compat.get())
    }

    /// Adds features; new ones raise the revision.
    pub fn add_features(&mut self, compat: Compat, incompat: Incompat, ro_compat: RoCompat) {
        let has_all = self.compat().contains(compat)
            && self.incompat().contains(incompat)
            && self.ro_compat().contains(ro_compat);
        if has_all {
            return;
        }
        self.raise_revision();
        self.raw.s_feature_compat = (self.compat() | compat).bits().into();
        self.raw.s_feature_incompat = (self.incompat() | incompat).bits().into();
        self.raw.s_feature_ro_compat = (self.ro_compat() | ro_compat).bits().into();
    }

    /// Upgrades a volume from revision 0 to the dynamic revision (kernel:
    /// `ext4_update_dynamic_rev`): sets the fields that revision 0 implies.
    ///
    /// Feature words stay as they are.
    pub fn raise_revision(&mut self) {
        if self.rev_level() < DYNAMIC_REVISION {
            self.raw.s_first_ino = self.first_inode().0.into();
            self.raw.s_inode_size = self.inode_size().into();
            self.raw.s_rev_level = DYNAMIC_REVISION.into();
        }
    }
}

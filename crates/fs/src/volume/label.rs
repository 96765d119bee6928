//! The label.

use super::Volume;
use crate::journal::Credits;
use crate::{Error, Result, quote};

impl Volume {
    /// The label, without padding.
    pub fn label(&self) -> Vec<u8> {
        match self.writer() {
            Some(writer) => writer.store.with_superblock(|sb| sb.label().to_vec()),
            None => self.superblock().label().to_vec(),
        }
    }

    /// Changes the label, durably. Copies of the superblock keep the old one.
    ///
    /// # Errors
    /// [`Error::Invalid`] for one of more than 16 bytes, or with a zero byte in it;
    /// [`Error::ReadOnly`]; why the journal gave up.
    pub async fn set_label(&self, label: &[u8]) -> Result<()> {
        let writer = self.writer().ok_or(Error::ReadOnly)?;
        let mut padded = [0; 16];
        let is_short = label.len() <= padded.len() && !label.contains(&0);
        if !is_short {
            return Err(Error::Invalid(format!("the label {}: it has at most 16 bytes", quote(label))));
        }
        padded[..label.len()].copy_from_slice(label);
        let change = async {
            writer.journal.start(Credits(1)).await?.superblock().raw_mut().s_volume_name = padded;
            writer.journal.commit(writer.journal.running()).await
        };
        writer.guarded(change).await
    }
}

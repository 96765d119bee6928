//! The journal.

use crate::buffers::Journaled;
use crate::{Error, Result, Volume};
use extant_format::VolumeBlock;
use std::collections::BTreeMap;

/// Where the journal holds newer blocks than the volume.
pub(crate) async fn overlay(_volume: &Volume) -> Result<BTreeMap<VolumeBlock, Journaled>> {
    Err(Error::unsupported("needs_recovery"))
}

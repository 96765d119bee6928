//! Access to the journal's blocks.

use crate::journal::LogMap;
use crate::map::RunWalker;
use crate::view::View;
use crate::{BlockRef, Error, Result, RunState};
use extant_format::jbd2::{JournalIncompat, JournalSuperblock};
use extant_format::{BlockRange, Corrupt, Place};

/// A volume's internal journal.
pub(crate) struct Log {
    pub(crate) view: View,
    pub(crate) sb: JournalSuperblock,
    pub(crate) map: LogMap,
}

impl Log {
    /// Opens the journal; `None` if it is on another device.
    pub(crate) async fn open(view: &View) -> Result<Option<Self>> {
        let Some(number) = view.superblock().journal_inode() else { return Ok(None) };
        let inode = view.inode(number).await?;
        let bad = |field, value, rule| Error::from(Corrupt::field(Place::Inode(number), field, value, rule));
        if inode.kind() != Some(extant_format::FileKind::Regular) {
            return Err(bad(
                "i_mode",
                inode.mode().into(),
                "that of a regular file, for it holds the journal",
            ));
        }
        let blocks = view.superblock().block_size().blocks_for(inode.size());
        let mut walker = RunWalker::new(BlockRange::new(0, blocks));
        let mut runs = Vec::new();
        while let Some(run) = walker.next(view, &inode).await? {
            if let RunState::Written(at) = run.state {
                runs.push((run.logical, at, run.blocks));
            }
        }
        let Some(&(0, first, _)) = runs.first() else {
            return Err(bad("i_block", 0, "a map of the journal's first block"));
        };
        let sb = JournalSuperblock::parse(&view.buffers().raw_block(first).await?)?;
        view.note(sb.verify_checksum())?;
        let place = Place::JournalSuperblock;
        if sb.block_size() != view.superblock().block_size() {
            let value = sb.block_size().bytes().into();
            return Err(Corrupt::field(place, "s_blocksize", value, "the volume's block size").into());
        }
        if u64::from(sb.blocks()) > blocks {
            let value = sb.blocks().into();
            return Err(Corrupt::field(place, "s_maxlen", value, "at most the journal file's blocks").into());
        }
        let unknown = sb.incompat() - JournalIncompat::KNOWN;
        if !unknown.is_empty() {
            return Err(Error::unsupported(format!("journal feature {unknown}")));
        }
        Ok(Some(Self { view: view.clone(), sb, map: LogMap::new(runs) }))
    }

    /// Reads block `n` of the journal.
    pub(crate) async fn block(&self, n: u32) -> Result<BlockRef> {
        self.view.buffers().raw_block(self.map.home(n)?).await
    }
}

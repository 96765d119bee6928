//! Times of access that change because something is read.

use super::Node;
use crate::Result;
use crate::journal::Credits;
use extant_format::{GOOD_OLD_INODE_SIZE, Inode, InodeFlags, Timestamp};

/// A time of access is renewed at least this often, in seconds.
const DAY: i64 = 24 * 60 * 60;

impl Node {
    /// Whether a read now changes the time of access by the rule of Linux's mount option `relatime`
    /// (`relatime_need_update`): it is not younger than the last change, or a day old.
    pub fn is_access_due(&self) -> bool {
        let now = self.writer().clock.now();
        let is_fine = usize::from(self.writer().store.shape().inode_size()) > GOOD_OLD_INODE_SIZE;
        let now = Timestamp { nanos: if is_fine { now.nanos } else { 0 }, ..now };
        self.cell().read(|inode| is_due(inode, now))
    }

    /// Notes that the inode was read, if that [changes](Self::is_access_due) its time of access.
    /// The next commit logs it, as for any other change.
    ///
    /// # Errors
    /// Why the journal gave up.
    pub async fn note_access(&self) -> Result<()> {
        if self.is_access_due() { Box::pin(self.writer().guarded(self.renew_access())).await } else { Ok(()) }
    }

    async fn renew_access(&self) -> Result<()> {
        let writer = self.writer();
        let mut handle = writer.journal.start(Credits(1)).await?;
        handle.inode(self.cell()).set_accessed(writer.clock.now());
        Ok(())
    }
}

fn is_due(inode: &Inode, now: Timestamp) -> bool {
    let accessed = inode.accessed();
    let is_older = inode.modified() >= accessed || inode.changed() >= accessed;
    let is_old = now.seconds.saturating_sub(accessed.seconds) >= DAY;
    (is_older || is_old) && accessed != now && !inode.flags().contains(InodeFlags::NOATIME)
}

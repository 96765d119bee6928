//! An open directory: names read ahead of the kernel's requests.

use crate::errno::Result;
use crate::object::Object;
use extant_format::{FileKind, InodeNumber};
use extant_fs::{Caller, Cookie, Listed, Volume};
use parking_lot::Mutex;
use std::collections::VecDeque;

/// Number of names to read at a time.
const AHEAD: usize = 1024;

/// See the module documentation.
#[derive(Debug)]
pub(crate) struct OpenDir {
    pub(crate) object: Object,
    notes_access: bool,
    listing: Mutex<Listing>,
}

/// A name in a listing.
#[derive(Clone, Debug)]
pub(crate) struct Name {
    pub(crate) name: Vec<u8>,
    pub(crate) inode: InodeNumber,
    pub(crate) kind: Option<FileKind>,
    /// Where to continue after this name.
    pub(crate) next: u64,
}

/// Names that have not been sent yet, and their position.
#[derive(Debug, Default)]
pub(crate) struct Listing {
    /// The position of the first of these names, as the kernel knows it.
    at: u64,
    names: VecDeque<Name>,
    /// Where reading continues after these names.
    from: u64,
    /// Names from `from` on that have already been read. Names with the same hash share a position.
    read: Vec<Vec<u8>>,
}

impl OpenDir {
    /// `notes_access`: reading it changes its time of access.
    pub(crate) fn new(object: Object, notes_access: bool) -> Self {
        Self { object, notes_access, listing: Mutex::default() }
    }

    /// Notes a read.
    pub(crate) async fn note_access(&self) {
        if let Object::Live(node) = &self.object
            && self.notes_access
        {
            // The read itself has succeeded.
            let _ = node.note_access().await;
        }
    }

    /// Takes the listing to continue at `at`. It is put back when it is dropped, also if the
    /// request is stopped.
    pub(crate) fn take(&self, at: u64) -> Taken<'_> {
        let listing = std::mem::take(&mut *self.listing.lock());
        let listing = match listing.at == at && at != 0 {
            true => listing,
            false => Listing { at, from: at, ..Listing::default() },
        };
        Taken { dir: self, listing }
    }
}

/// A listing in use.
pub(crate) struct Taken<'a> {
    dir: &'a OpenDir,
    pub(crate) listing: Listing,
}

impl Drop for Taken<'_> {
    fn drop(&mut self) {
        *self.dir.listing.lock() = std::mem::take(&mut self.listing);
    }
}

impl Listing {
    /// The next name. `None` at the end.
    pub(crate) async fn peek(&mut self, dir: &Object, volume: &Volume) -> Result<Option<&Name>> {
        while self.names.is_empty() && self.from < Cookie::END.0 {
            match dir {
                Object::Live(_) => self.read(dir).await?,
                Object::Stored(_) => self.read_stored(dir, volume).await?,
            }
        }
        Ok(self.names.front())
    }

    /// Moves past the name that [`Self::peek`] returned.
    pub(crate) fn advance(&mut self) {
        if let Some(name) = self.names.pop_front() {
            self.at = name.next;
        }
    }

    async fn read(&mut self, dir: &Object) -> Result<()> {
        let (from, already) = (self.from, &self.read);
        let mut found: Vec<Name> = Vec::new();
        let mut emit = |listed: Listed<'_>| {
            // The kernel aborts a listing at such a name, which encrypted and damaged directories
            // may contain.
            let is_possible = !listed.name.iter().any(|byte| matches!(byte, b'/' | 0));
            if is_possible && !already.iter().any(|name| name == listed.name) {
                let Listed { name, inode, kind, next } = listed;
                found.push(Name { name: name.to_vec(), inode, kind, next: next.0 });
            }
            found.len() < AHEAD
        };
        // Nothing has changed here if the request is stopped meanwhile.
        let next = dir.live()?.read_dir(Cookie(from), &mut emit).await?.0;
        self.from = next;
        if next != from {
            self.read.clear();
        }
        let last = found.iter().rev().take_while(|name| name.next == self.from);
        self.read.extend(last.map(|name| name.name.clone()));
        self.names.extend(found);
        Ok(())
    }

    /// Reads all names. Positions are numbers of names, which do not change on a read-only volume.
    async fn read_stored(&mut self, dir: &Object, volume: &Volume) -> Result<()> {
        let Object::Stored(inode) = dir else { return Ok(()) };
        let parent = volume.lookup(inode, b"..").await?.unwrap_or(inode.number);
        let kind = Some(FileKind::Directory);
        let dots = [(b".".to_vec(), inode.number, kind), (b"..".to_vec(), parent, kind)];
        let items = volume.list(inode).await?.into_iter().map(|item| (item.name, item.inode, item.kind));
        let all = (1..).zip(dots.into_iter().chain(items));
        let rest = all.skip(self.from as usize);
        self.names.extend(rest.map(|(next, (name, inode, kind))| Name { name, inode, kind, next }));
        self.from = Cookie::END.0;
        Ok(())
    }
}

/// Looks up a name that was listed.
pub(crate) async fn look_up(
    dir: &Object,
    volume: &Volume,
    caller: &Caller,
    name: &[u8],
) -> Result<Option<Object>> {
    match dir {
        Object::Live(dir) => match dir.lookup(caller, name).await {
            Ok(node) => Ok(Some(Object::Live(node))),
            Err(extant_fs::Error::NotFound(_)) => Ok(None),
            Err(error) => Err(error.into()),
        },
        Object::Stored(inode) => {
            volume.check_access(caller, inode, 1).await?;
            match volume.lookup(inode, name).await? {
                Some(number) => Ok(Some(Object::Stored(volume.inode(number).await?.into()))),
                None => Ok(None),
            }
        }
    }
}

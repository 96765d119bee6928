//! Directory listings.

use super::files::notes_access;
use crate::errno::Result;
use crate::handles::Handle;
use crate::listing::{Listing, Name, OpenDir, look_up};
use crate::object::Object;
use crate::served::{MAX_WRITE, Served};
use crate::wire::{Dirent, EntryOut, OpenIn, OpenOut, ReadIn, Reply};
use extant_fs::Caller;
use std::sync::Arc;
use zerocopy::IntoBytes;

pub(crate) async fn opendir(served: &Served, nodeid: u64, caller: &Caller, args: &OpenIn) -> Result<Reply> {
    let object = served.nodes.get(nodeid).await?;
    match &object {
        Object::Live(node) => node.check_access(caller, 4).await?,
        Object::Stored(inode) => served.volume.check_access(caller, inode, 4).await?,
    }
    let dir = OpenDir::new(object, notes_access(served, args.flags));
    let fh = served.handles.open(Handle::Dir(Arc::new(dir)));
    Ok(Reply::Opened(OpenOut { fh, ..OpenOut::default() }))
}

/// Lists names. With a caller in `plus`, also looks up their inodes for that caller (READDIRPLUS).
pub(crate) async fn readdir(served: &Served, args: &ReadIn, plus: Option<&Caller>) -> Result<Reply> {
    let handle = served.handles.get(args.fh)?;
    let dir = handle.dir()?;
    let mut taken = dir.take(args.offset);
    let most = args.size.min(MAX_WRITE) as usize;
    let mut reply = Listed { served, bytes: Vec::with_capacity(most), told: Vec::new() };
    let filled = fill(served, &dir.object, &mut taken.listing, &mut reply, most, plus).await;
    drop(taken);
    if filled.is_ok() {
        dir.note_access().await;
    }
    match filled {
        // Names listed before an error are sent first. The next request will hit the error again.
        Err(failure) if reply.bytes.is_empty() => Err(failure),
        _ => Ok(Reply::Listing(std::mem::take(&mut reply.bytes), std::mem::take(&mut reply.told))),
    }
}

/// The entries of a reply. If the request is stopped, the kernel learns of none of their inodes.
struct Listed<'a> {
    served: &'a Served,
    bytes: Vec<u8>,
    told: Vec<u64>,
}

impl Drop for Listed<'_> {
    fn drop(&mut self) {
        self.told.iter().for_each(|nodeid| self.served.nodes.forget(*nodeid, 1));
    }
}

async fn fill(
    served: &Served,
    dir: &Object,
    listing: &mut Listing,
    reply: &mut Listed<'_>,
    most: usize,
    plus: Option<&Caller>,
) -> Result<()> {
    while let Some(name) = listing.peek(dir, &served.volume).await? {
        let entry_bytes = if plus.is_some() { size_of::<EntryOut>() } else { 0 };
        let record = entry_bytes + (size_of::<Dirent>() + name.name.len()).next_multiple_of(8);
        if reply.bytes.len() + record > most {
            break;
        }
        if let Some(caller) = plus {
            // If the reply contains no inode, the kernel looks the name up when it is used.
            let entry = entry(served, dir, caller, name).await.unwrap_or_default();
            reply.told.extend((entry.nodeid != 0).then_some(entry.nodeid));
            reply.bytes.extend_from_slice(entry.as_bytes());
        }
        let dirent = Dirent {
            ino: name.inode.0.into(),
            off: name.next,
            namelen: name.name.len() as u32,
            kind: name.kind.map_or(0, |kind| u32::from(kind.mode_bits() >> 12)),
        };
        reply.bytes.extend_from_slice(dirent.as_bytes());
        reply.bytes.extend_from_slice(&name.name);
        reply.bytes.resize(reply.bytes.len().next_multiple_of(8), 0);
        listing.advance();
    }
    Ok(())
}

async fn entry(served: &Served, dir: &Object, caller: &Caller, name: &Name) -> Option<EntryOut> {
    if matches!(&*name.name, b"." | b"..") {
        return None;
    }
    let object = look_up(dir, &served.volume, caller, &name.name).await.ok()??;
    let entry = object.entry(&served.volume, &served.shown).ok()?;
    served.nodes.tell(&object);
    Some(entry)
}

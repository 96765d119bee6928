//! What the supervisor of an emulation asks for.

use crate::emulation::{Identities, NewOwner};
use crate::errno::{Errno, Result};
use crate::served::Served;
use crate::wire::{IoctlOut, Reply};
use extant_fs::{Caller, SetAttributes};
use zerocopy::FromBytes;

/// Changes the owner of a file, as the process may for which the supervisor asks. Set-ID bits and
/// capabilities of programs go, as for chown(2).
pub(crate) async fn set_owner(
    served: &Served,
    nodeid: u64,
    identities: &Identities,
    value: &[u8],
) -> Result<Reply> {
    let change = NewOwner::read_from_bytes(value).map_err(|_| Errno::INVAL)?;
    let caller = match identities.author(&change) {
        Some(author) if author.user != 0 => {
            Caller::user(author.user, author.group, author.supplementary.clone())
        }
        _ => Caller::root(),
    };
    let set = SetAttributes { uid: change.user(), gid: change.group(), ..SetAttributes::default() };
    let object = served.nodes.get(nodeid).await?;
    object.live()?.set_attributes(&caller, &set).await?;
    Ok(Reply::Done)
}

/// Takes the credentials in an ioctl's argument.
pub(crate) fn register(identities: &Identities, data: &[u8]) -> Result<Reply> {
    match identities.register(data) {
        true => Ok(Reply::Ioctl(IoctlOut::default(), Vec::new())),
        false => Err(Errno::INVAL.into()),
    }
}

//! Rename: within a directory, to another one, over an existing name, or exchanging two names.

use super::caller::{Protection, Want, check_removal};
use super::create::{Draft, LEAF_CREDITS, add_dir_link, drop_dir_link, links_full, new_owners};
use super::delete_inode::CheckedMap;
use super::dir_state::state;
use super::link::same_project;
use super::node::{check_name_length, not_found, permit};
use super::open_dir::{Growth, OpenDir, Slot, Spot};
use super::order::{Order, Rank, Stopped};
use super::remove::{DROP_CREDITS, Victim, drop_name};
use super::{Caller, Capabilities, Namespace, Node, SYNC_NAMES, delete_inode, touch, touch_inode};
use crate::inode::InodeCell;
use crate::journal::{Credits, Handle};
use crate::{Error, Result, quote};
use extant_format::{Corrupt, FileKind, Inode, InodeNumber, Place};
use futures_util::future::BoxFuture;
use std::sync::Arc;

/// What to do if the target name exists.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum RenameMode {
    /// Replace it.
    #[default]
    Replace,
    /// Fail (`RENAME_NOREPLACE`).
    NoReplace,
    /// Exchange the two names (`RENAME_EXCHANGE`); the target must exist.
    Exchange,
    /// Replace it, and leave a whiteout under the old name (`RENAME_WHITEOUT`). A whiteout is a
    /// character device 0:0, which hides the name in lower layers if the directory is part of an
    /// overlay.
    Whiteout,
    /// Fail, or leave a whiteout (`RENAME_NOREPLACE | RENAME_WHITEOUT`).
    WhiteoutNoReplace,
}

impl RenameMode {
    /// Whether it fails if the target exists.
    const fn refuses_target(self) -> bool {
        matches!(self, Self::NoReplace | Self::WhiteoutNoReplace)
    }

    /// Whether a whiteout stays under the old name.
    const fn leaves_whiteout(self) -> bool {
        matches!(self, Self::Whiteout | Self::WhiteoutNoReplace)
    }
}

/// One rename, with both names looked up and both directories locked.
struct Move<'a> {
    namespace: &'a Namespace,
    checked: &'a CheckedMap,
    /// The directory of the old name. Also that of the new one, unless `to` is set.
    from: OpenDir<'a>,
    to: Option<OpenDir<'a>>,
    old: &'a [u8],
    new: &'a [u8],
    source: Arc<InodeCell>,
    source_kind: FileKind,
    target: Option<Arc<InodeCell>>,
}

impl Node {
    /// Moves `name` of this directory to `new_name` of `new_dir`, in one step. After a crash, one
    /// of the two names exists, and `new_name` leads to the old file or the new one. If both are
    /// names of the same inode, nothing changes.
    ///
    /// # Errors
    /// [`Error::NotFound`]; [`Error::Exists`] if asked for; [`Error::Access`],
    /// [`Error::Permission`]; [`Error::IsADirectory`], [`Error::NotADirectory`],
    /// [`Error::NotEmpty`]; [`Error::Invalid`] when moving a directory into its own tree;
    /// [`Error::Busy`] for `.` and `..`; [`Error::TooManyLinks`]; [`Error::CrossDevice`];
    /// [`Error::NoSpace`]; [`Error::Permission`] for a whiteout without the capability to create
    /// devices.
    pub fn rename<'a>(
        &'a self,
        caller: &'a Caller,
        name: &'a [u8],
        new_dir: &'a Self,
        new_name: &'a [u8],
        mode: RenameMode,
    ) -> BoxFuture<'a, Result<()>> {
        let names = ((self, name), (new_dir, new_name));
        let moved = self.writer().guarded(move_name(caller, names, mode, Victim::Deleted));
        Box::pin(async move { moved.await.map(drop) })
    }

    /// Like [`Self::rename`]. Returns the inode that was replaced, if any, which is not deleted
    /// before that node is dropped.
    ///
    /// # Errors
    /// The same errors.
    pub fn rename_keeping<'a>(
        &'a self,
        caller: &'a Caller,
        name: &'a [u8],
        new_dir: &'a Self,
        new_name: &'a [u8],
        mode: RenameMode,
    ) -> BoxFuture<'a, Result<Option<Self>>> {
        let names = ((self, name), (new_dir, new_name));
        Box::pin(self.writer().guarded(move_name(caller, names, mode, Victim::Kept)))
    }
}

async fn move_name(
    caller: &Caller,
    names: (Name<'_>, Name<'_>),
    mode: RenameMode,
    victim: Victim,
) -> Result<Option<Node>> {
    let ((from, name), (to, new_name)) = names;
    let (namespace, writer) = (from.namespace(), from.writer());
    namespace.tidy().await;
    if !Arc::ptr_eq(writer, to.writer()) {
        return Err(Error::CrossDevice(quote(new_name)));
    }
    let dots = |name: &[u8]| matches!(name, b"." | b"..");
    if dots(name) || (dots(new_name) && !mode.refuses_target()) {
        return Err(Error::Busy(quote(if dots(name) { name } else { new_name })));
    }
    if dots(new_name) {
        return Err(Error::Exists(quote(new_name)));
    }
    if mode.leaves_whiteout() && !caller.can(Capabilities::MKNOD) {
        return Err(Error::Permission(quote(name)));
    }
    if matches!(mode, RenameMode::Replace | RenameMode::Whiteout) {
        from.write_back_replacement(name, to, new_name).await?;
    }
    let mut checked = CheckedMap::default();
    let (replaced, kept) = loop {
        match rename_in_order(namespace, caller, names, (mode, victim), &checked).await {
            Ok(replaced) => break replaced,
            Err(stopped) => checked.resume(namespace, stopped).await?,
        }
    };
    if let Some(replaced) = replaced.filter(|_| kept.is_none()) {
        namespace.delete_unused(&replaced).await;
    }
    writer.settle(&[from.cell(), to.cell()], SYNC_NAMES).await?;
    Ok(kept)
}

impl Node {
    /// Writes and logs a file's data before the file replaces another one. After a crash, the name
    /// then leads to the old contents or the new ones. The names are looked up without locks; if
    /// they change meanwhile, this is not guaranteed.
    ///
    /// # Errors
    /// The data cannot be written; the name keeps the old contents. (Linux only starts the write
    /// and replaces the file. The error is left to an fsync, which programs that replace by rename
    /// often omit.)
    async fn write_back_replacement(&self, name: &[u8], new_dir: &Self, new_name: &[u8]) -> Result<()> {
        let caller = &Caller::root();
        if new_dir.find(caller, new_name).await.is_err() {
            return Ok(());
        }
        match self.find(caller, name).await {
            Ok(source) => Box::pin(self.namespace().files.write_back_one(source.cell())).await,
            Err(_) => Ok(()),
        }
    }
}

/// The directories above `dir`, excluding itself.
async fn ancestors(namespace: &Namespace, dir: &Arc<InodeCell>) -> Result<Vec<InodeNumber>> {
    let mut above = Vec::new();
    let mut at = dir.clone();
    while at.number() != InodeNumber::ROOT {
        // The directory's own lock is not held, so its size and map may change.
        let known = state(&at).parent;
        let parent = match known {
            Some(parent) => parent,
            None => OpenDir::new(namespace, &at)?.parent().await?,
        };
        if above.contains(&parent) || parent == dir.number() {
            let place = Place::Inode(at.number());
            return Err(Corrupt::field(place, "..", parent.0.into(), "a directory above this one").into());
        }
        above.push(parent);
        at = namespace.writer.inodes.get_live(parent, Place::Inode(at.number())).await?;
    }
    Ok(above)
}

/// A directory and a name in it.
type Name<'a> = (&'a Node, &'a [u8]);

/// An inode that was replaced: its cell if it has lost its last name, and a node for it if one is
/// wanted.
type Replaced = (Option<Arc<InodeCell>>, Option<Node>);

/// Locks the directories and renames. Returns the inode that lost its last name, if any.
async fn rename_in_order(
    namespace: &Arc<Namespace>,
    caller: &Caller,
    names: (Name<'_>, Name<'_>),
    (mode, victim): (RenameMode, Victim),
    checked: &CheckedMap,
) -> std::result::Result<Replaced, Stopped> {
    let ((from, name), (to, new_name)) = names;
    let (from, to) = (from.cell(), to.cell());
    let cross = !Arc::ptr_eq(from, to);
    let order = Order::default();
    let _renames = match cross {
        true => {
            order.check(Rank::Renames, 0);
            Some(namespace.renames.write().await)
        }
        false => None,
    };
    // A removed directory has no parent.
    if !from.is_live() || !to.is_live() {
        return Err(not_found(if from.is_live() { new_name } else { name }).into());
    }
    // The hierarchy cannot change while the rename lock is held.
    let (above_from, above_to) = match cross {
        true => {
            Box::pin(async {
                Ok::<_, Error>((ancestors(namespace, from).await?, ancestors(namespace, to).await?))
            })
            .await?
        }
        false => Default::default(),
    };
    let (first, second) = match cross {
        true if to.number() < from.number() => (to, Some(from)),
        true => (from, Some(to)),
        false => (from, None),
    };
    let _first = order.write(Rank::Directory, first).await;
    let _second = match second {
        Some(second) => Some(order.write(Rank::Directory, second).await),
        None => None,
    };
    rename_locked(namespace, caller, names, (mode, victim, checked), (&above_from, &above_to), &order).await
}

async fn rename_locked(
    namespace: &Arc<Namespace>,
    caller: &Caller,
    ((from_node, old), (to_node, new)): (Name<'_>, Name<'_>),
    (mode, victim, checked): (RenameMode, Victim, &CheckedMap),
    (above_from, above_to): (&[InodeNumber], &[InodeNumber]),
    order: &Order,
) -> std::result::Result<Replaced, Stopped> {
    let writer = &*namespace.writer;
    let (from_cell, to_cell) = (from_node.cell(), to_node.cell());
    let cross = !Arc::ptr_eq(from_cell, to_cell);
    let mut from = from_node.open_dir().await?;
    let mut to = if cross { Some(to_node.open_dir().await?) } else { None };
    permit(writer, caller, from_cell, Want::SEARCH).await?;
    permit(writer, caller, to_cell, Want::SEARCH).await?;
    check_name_length(old)?;
    let Some(old_spot) = from.look_for_removal(old).await? else { return Err(not_found(old).into()) };
    check_name_length(new)?;
    if new.is_empty() || new.contains(&b'/') || new.contains(&0) {
        return Err(not_found(new).into());
    }
    let looked = to.as_mut().unwrap_or(&mut from).look(new).await?;
    match (&looked, mode) {
        (Ok(_), mode) if mode.refuses_target() => return Err(Error::Exists(quote(new)).into()),
        (Err(_), RenameMode::Exchange) => return Err(not_found(new).into()),
        _ => {}
    }
    let source = writer.inodes.get_live(old_spot.entry().inode, Place::Inode(from_cell.number())).await?;
    let target = match &looked {
        Ok(spot) => Some(writer.inodes.get_live(spot.entry().inode, Place::Inode(to_cell.number())).await?),
        Err(_) => None,
    };
    // `.` and `..` were refused earlier.
    for (dir, inode) in [(from_cell, Some(&source)), (to_cell, target.as_ref())] {
        if cross && inode.is_some_and(|inode| Arc::ptr_eq(inode, dir)) {
            let (place, number) = (Place::Inode(dir.number()), dir.number().0.into());
            let rule = "another one than the directory that the name lies in";
            return Err(Corrupt::field(place, "inode of a name", number, rule).into());
        }
    }
    if source.number() == to_cell.number() || above_to.contains(&source.number()) {
        return Err(Error::Invalid(format!("{} cannot be moved into itself", quote(old))).into());
    }
    if let Some(target) = &target
        && (target.number() == from_cell.number() || above_from.contains(&target.number()))
    {
        return Err(match mode {
            RenameMode::Exchange => Error::Invalid(format!("{} is above {}", quote(new), quote(old))),
            _ => Error::NotEmpty(quote(new)),
        }
        .into());
    }
    if target.as_ref().is_some_and(|target| Arc::ptr_eq(target, &source)) {
        return Ok((None, None));
    }
    let kind_of = |cell: &Arc<InodeCell>| cell.read(Inode::kind).unwrap_or(FileKind::Regular);
    let source_kind = kind_of(&source);
    let is_dir = source_kind == FileKind::Directory;
    let target_is_dir = target.as_ref().is_some_and(|target| kind_of(target) == FileKind::Directory);
    let removable = |dir: &Arc<InodeCell>, victim: &Arc<InodeCell>, directory: bool, name: &[u8]| {
        let (dir, victim) = (dir.read(Protection::of), victim.read(Protection::of));
        check_removal(caller, dir, victim, directory, || quote(name))
    };
    permit(writer, caller, from_cell, Want::CHANGE_NAMES).await?;
    removable(from_cell, &source, is_dir, old)?;
    permit(writer, caller, to_cell, Want::CHANGE_NAMES).await?;
    if let Some(target) = &target {
        let directory = if mode == RenameMode::Exchange { target_is_dir } else { is_dir };
        removable(to_cell, target, directory, new)?;
    } else if !to_cell.is_live() {
        return Err(not_found(new).into());
    }
    if cross {
        // The entry `..` will change.
        if is_dir {
            permit(writer, caller, &source, Want::WRITE).await?;
        }
        if let Some(target) = target.as_ref().filter(|_| mode == RenameMode::Exchange && target_is_dir) {
            permit(writer, caller, target, Want::WRITE).await?;
        }
        let fits = |dir: &Arc<InodeCell>, inode: &Arc<InodeCell>| {
            same_project(&dir.read(Inode::clone), &inode.read(Inode::clone))
        };
        let back =
            mode != RenameMode::Exchange || target.as_ref().is_none_or(|target| fits(from_cell, target));
        if !fits(to_cell, &source) || !back {
            return Err(Error::CrossDevice(quote(new)).into());
        }
    }
    from.check_changeable()?;
    to.iter().try_for_each(OpenDir::check_changeable)?;
    let (first, second) = lock_order(&source, is_dir, target.as_ref(), target_is_dir);
    let rank = |cell: &Arc<InodeCell>| Rank::of(kind_of(cell) == FileKind::Directory);
    let _first = order.follow(rank(first), first).await?;
    let _second = match second {
        Some(second) => Some(order.follow(rank(second), second).await?),
        None => None,
    };
    for (dir, moved) in [(&from, Some(&source)), (to.as_ref().unwrap_or(&from), target.as_ref())] {
        if let Some(moved) = moved.filter(|moved| kind_of(moved) == FileKind::Directory) {
            OpenDir::open(namespace, moved).await?.check_lies_in(dir.cell().number())?;
            dir.check_named_once(moved.number()).await?;
        }
    }
    let (source, target) = (source.clone(), target.clone());
    let moved = Move { namespace, checked, from, to, old, new, source, source_kind, target };
    match (looked, mode) {
        (Ok(new_spot), RenameMode::Exchange) => {
            Box::pin(moved.exchange(old_spot, new_spot, target_is_dir)).await?;
            Ok((None, None))
        }
        (looked, mode) => {
            let kept = moved.target.clone().filter(|_| victim == Victim::Kept);
            let kept = kept.map(|target| Node::new(namespace, target));
            let leaves_whiteout = mode.leaves_whiteout();
            Ok((moved.replace(caller, looked, target_is_dir, leaves_whiteout).await?, kept))
        }
    }
}

/// The order in which to lock the moved and the replaced inode: directories first, then by number.
fn lock_order<'a>(
    source: &'a Arc<InodeCell>,
    is_dir: bool,
    target: Option<&'a Arc<InodeCell>>,
    target_is_dir: bool,
) -> (&'a Arc<InodeCell>, Option<&'a Arc<InodeCell>>) {
    let rank = |cell: &Arc<InodeCell>, is_dir: bool| (!is_dir, cell.number());
    match target {
        Some(target) if rank(target, target_is_dir) < rank(source, is_dir) => (target, Some(source)),
        target => (source, target),
    }
}

impl Move<'_> {
    fn is_dir(&self) -> bool {
        self.source_kind == FileKind::Directory
    }

    fn to_cell(&self) -> Arc<InodeCell> {
        self.to.as_ref().unwrap_or(&self.from).cell().clone()
    }

    /// Opens the moved directory and pins its block with `..`; `None` if `..` does not change.
    async fn moved_dir<'w>(
        namespace: &'w Namespace,
        cell: &Arc<InodeCell>,
        moves: bool,
    ) -> Result<Option<OpenDir<'w>>> {
        if !moves {
            return Ok(None);
        }
        let mut dir = OpenDir::new(namespace, cell)?;
        dir.parent().await?;
        Ok(Some(dir))
    }

    async fn replace(
        mut self,
        caller: &Caller,
        looked: std::result::Result<Spot, Slot>,
        target_is_dir: bool,
        leaves_whiteout: bool,
    ) -> std::result::Result<Option<Arc<InodeCell>>, Stopped> {
        let (namespace, writer) = (self.namespace, &*self.namespace.writer);
        let cross = self.to.is_some();
        if target_is_dir {
            let target = self.target.as_ref().expect("it is a directory");
            let mut target = OpenDir::new(namespace, target)?;
            if !Box::pin(target.is_empty()).await? {
                return Err(Error::NotEmpty(quote(self.new)).into());
            }
        } else if self.is_dir() && cross && links_full(&self.to_cell().read(Inode::clone), writer) {
            return Err(Error::TooManyLinks(format!("inode {}", self.to_cell().number())).into());
        }
        if let Some(target) = &self.target {
            Box::pin(delete_inode::check(namespace, target, self.checked)).await?;
        }
        let growth = match &looked {
            Ok(_) => Growth::NONE,
            Err(slot) => {
                let privilege = writer.privilege(caller);
                self.to.as_mut().unwrap_or(&mut self.from).prepare(slot, privilege).await?
            }
        };
        let mut moved = Self::moved_dir(namespace, &self.source, self.is_dir() && cross).await?;
        let room = match leaves_whiteout {
            true => {
                let owners = new_owners(caller, self.from.cell(), FileKind::CharDevice);
                Box::pin(namespace.expect_owners(owners)).await?
            }
            false => None,
        };
        // Last, because it may hold the lock of shared attribute blocks, which the steps above take
        // to make room.
        let mut whiteout = match leaves_whiteout {
            true => Some(Box::pin(Draft::whiteout(writer, caller, self.from.cell())).await?),
            false => None,
        };
        // Both leaves and directories, the block with `..`, and the moved inode.
        let credits = 2 * LEAF_CREDITS
            + growth.credits()
            + 2
            + DROP_CREDITS
            + whiteout.as_ref().map_or(0, Draft::credits);
        let mut attach = whiteout.as_mut().and_then(Draft::take_attach);
        let mut handle = writer.journal.start(Credits(credits)).await?;
        let (source, kind) = (self.source.number(), self.source_kind);
        let to = self.to.as_mut().unwrap_or(&mut self.from);
        match &looked {
            Ok(spot) => to.set(&mut handle, (spot, self.new), source, kind),
            Err(slot) => to.insert(&mut handle, slot, growth, source, self.new, kind)?,
        }
        // Adding the new name may have split the old name's block.
        let spot = self.from.find_again(self.old).expect("the old name is in a block that is pinned");
        match whiteout {
            Some(draft) => {
                self.from.set(&mut handle, (&spot, self.old), draft.number(), FileKind::CharDevice);
                let from = self.from.cell().clone();
                draft.log(writer, &mut handle, &from, attach.as_mut());
            }
            None => self.from.remove(&mut handle, &spot, self.old),
        }
        touch_inode(&mut handle.inode(&self.source), writer);
        if let Some(target) = &self.target {
            drop_name(writer, &mut handle, target);
        }
        let to_cell = self.to_cell();
        if let Some(moved) = &mut moved {
            moved.set_parent(&mut handle, to_cell.number());
        }
        {
            let mut dir = handle.inode(self.from.cell());
            if self.is_dir() && (cross || target_is_dir) {
                drop_dir_link(&mut dir);
            }
            touch(&mut dir, writer);
        }
        if cross {
            let mut dir = handle.inode(&to_cell);
            if self.is_dir() && !target_is_dir {
                add_dir_link(&mut dir, writer);
            }
            touch(&mut dir, writer);
        }
        drop(handle);
        drop(room);
        Ok(self.target.filter(|target| !target.is_live()))
    }

    async fn exchange(mut self, old_spot: Spot, new_spot: Spot, target_is_dir: bool) -> Result<()> {
        let (namespace, writer) = (self.namespace, &*self.namespace.writer);
        let cross = self.to.is_some();
        let target = self.target.clone().expect("an exchange has two names");
        let target_kind = target.read(Inode::kind).unwrap_or(FileKind::Regular);
        let (is_dir, to_cell) = (self.is_dir(), self.to_cell());
        if cross && is_dir != target_is_dir {
            let gains = if is_dir { &to_cell } else { self.from.cell() };
            if links_full(&gains.read(Inode::clone), writer) {
                return Err(Error::TooManyLinks(format!("inode {}", gains.number())));
            }
        }
        let mut source_dir = Self::moved_dir(namespace, &self.source, is_dir && cross).await?;
        let mut target_dir = Self::moved_dir(namespace, &target, target_is_dir && cross).await?;
        let mut handle = writer.journal.start(Credits(2 * LEAF_CREDITS + 4)).await?;
        self.from.set(&mut handle, (&old_spot, self.old), target.number(), target_kind);
        let to = self.to.as_mut().unwrap_or(&mut self.from);
        to.set(&mut handle, (&new_spot, self.new), self.source.number(), self.source_kind);
        if let Some(dir) = &mut source_dir {
            dir.set_parent(&mut handle, to_cell.number());
        }
        if let Some(dir) = &mut target_dir {
            dir.set_parent(&mut handle, self.from.cell().number());
        }
        touch_inode(&mut handle.inode(&self.source), writer);
        touch_inode(&mut handle.inode(&target), writer);
        let counts = cross && is_dir != target_is_dir;
        let change = |handle: &mut Handle, cell: &Arc<InodeCell>, gains: bool| {
            let mut dir = handle.inode(cell);
            if counts && gains {
                add_dir_link(&mut dir, writer);
            } else if counts {
                drop_dir_link(&mut dir);
            }
            touch(&mut dir, writer);
        };
        change(&mut handle, self.from.cell(), target_is_dir);
        if cross {
            change(&mut handle, &to_cell, is_dir);
        }
        drop(handle);
        Ok(())
    }
}

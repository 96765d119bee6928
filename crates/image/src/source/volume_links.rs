//! Symbolic links of the volume that sources are added to.
//!
//! Where a source has a directory and the volume a link to one, the source's files belong to the
//! link's target. So the tree gets such links, and the directories that they lead to, before the
//! source is laid over it: what other sources have at the target then joins or replaces these files
//! in the order of the sources. In the tree they are implied: nothing of them is added.

use super::etc_files::MOST_BYTES;
use crate::BuildError;
use crate::tree::{Kind, NodeId, Tree};
use extant_block::Device;
use extant_format::{FileKind, Inode, UintExt};
use extant_fs::{Error, Follow, OpenOptions, SYMLINKS_MAX, Volume};
use extant_rt::Rt;
use std::cell::OnceCell;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;

/// The directory of the volume that sources are added to.
pub(crate) struct Below<'a> {
    rt: &'a Rt,
    device: &'a Arc<dyn Device>,
    directory: &'a [u8],
    /// The image's name, for messages.
    image: &'a str,
    /// Opened for reading when it is first needed.
    opened: OnceCell<Opened>,
}

struct Opened {
    volume: Volume,
    top: Option<Top>,
}

/// The directory that sources are added to.
struct Top {
    volume: Volume,
    inode: Inode,
    /// Whether it is the volume's root. If not, absolute links lead out of the tree.
    is_whole: bool,
}

impl<'a> Below<'a> {
    pub(crate) fn new(rt: &'a Rt, device: &'a Arc<dyn Device>, directory: &'a [u8], image: &'a str) -> Self {
        Self { rt, device, directory, image, opened: OnceCell::new() }
    }

    /// Adds to `tree` the links that directories of `upper` meet, if their targets are in the
    /// directory that sources are added to, and what these lead to. `upper` is not an image layer.
    pub(super) fn imply_links(&self, tree: &mut Tree, upper: &Tree) -> Result<(), BuildError> {
        let work = async {
            match &self.opened().await?.top {
                Some(top) => top.imply_links(tree, upper).await,
                None => Ok(()),
            }
        };
        self.rt.block_on(work)?
    }

    /// The contents of a regular file in the volume's `/etc`.
    pub(super) fn file_in_etc(&self, name: &str) -> Result<Option<Vec<u8>>, BuildError> {
        let path = format!("/etc/{name}");
        let work = async {
            let Opened { volume, .. } = self.opened().await?;
            let read = async {
                let Some(inode) = found(volume, path.as_bytes(), FileKind::Regular).await? else {
                    return Ok(None);
                };
                let mut bytes = vec![0; inode.size().min(MOST_BYTES).to_usize()];
                let (file, mut done) = (volume.open_file(inode).await?, 0);
                while done < bytes.len() {
                    match file.read_at(done.to_u64(), &mut bytes[done..]).await? {
                        0 => break,
                        n => done += n,
                    }
                }
                bytes.truncate(done);
                Ok(Some(bytes))
            };
            read.await.map_err(|error| BuildError::volume(path.as_bytes(), error))
        };
        self.rt.block_on(work)?
    }

    async fn opened(&self) -> Result<&Opened, BuildError> {
        if let Some(opened) = self.opened.get() {
            return Ok(opened);
        }
        let opened = Opened::open(self.device, self.directory).await;
        let opened = opened.map_err(|error| BuildError::Volume { path: self.image.to_owned(), error })?;
        Ok(self.opened.get_or_init(|| opened))
    }
}

/// A directory in the tree, on the volume or both.
#[derive(Clone)]
struct Place {
    /// Its path, free of links.
    path: Vec<u8>,
    tree: Option<NodeId>,
    volume: Option<Inode>,
}

/// What a name leads to.
enum Found {
    Directory(Place),
    /// A link of the tree.
    Link(Vec<u8>),
    /// A link that only the volume has.
    VolumeLink(Vec<u8>),
    Other,
}

/// Where a link leads.
enum End {
    /// To a directory; on the way to it are these directories and links, which the tree lacks.
    Directory(Box<Place>, Vec<Missing>),
    /// To no directory; on the way are these.
    Nothing(Vec<Missing>),
    /// Out of the directory that sources are added to.
    Outside,
}

/// A directory, or a link with its target, that the tree lacks.
struct Missing {
    above: Vec<u8>,
    name: Vec<u8>,
    target: Option<Vec<u8>>,
}

/// The inode of this kind at a path of the volume.
async fn found(volume: &Volume, path: &[u8], kind: FileKind) -> Result<Option<Inode>, Error> {
    match volume.resolve(path, Follow::Yes).await {
        Ok(inode) if inode.kind() == Some(kind) => Ok(Some(inode)),
        Ok(_) | Err(Error::NotFound(_) | Error::NotADirectory(_) | Error::Loop(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

impl Opened {
    async fn open(device: &Arc<dyn Device>, directory: &[u8]) -> Result<Self, Error> {
        let volume = Volume::open(device.clone(), OpenOptions::default()).await?;
        let top = found(&volume, &[b"/", directory].concat(), FileKind::Directory).await?;
        let root = volume.root().await?.number;
        let of = |inode: Inode| Top { volume: volume.clone(), is_whole: inode.number == root, inode };
        Ok(Self { top: top.map(of), volume })
    }
}

impl Top {
    async fn imply_links(&self, tree: &mut Tree, upper: &Tree) -> Result<(), BuildError> {
        let hidden: BTreeSet<_> =
            tree.hidden().iter().map(|hidden| (hidden.path(), hidden.name.is_none())).collect();
        let mut todo = vec![(NodeId::ROOT, self.root())];
        while let Some((from, to)) = todo.pop() {
            for entry in upper.sorted_children(from) {
                let dir = upper.entry_node(entry);
                if upper.node(dir).kind != Kind::Directory {
                    continue;
                }
                let name = upper.entry_name(entry);
                let there = match self.look(tree, &hidden, &to, name).await? {
                    Found::Directory(place) => Some(place),
                    Found::Link(_) | Found::VolumeLink(_) => {
                        match self.follow(tree, &hidden, &[&to.path[..], b"/", name].concat()).await? {
                            End::Directory(place, missing) => {
                                imply(tree, missing)?;
                                let tree = find(tree, &place.path);
                                Some(Place { tree, ..*place })
                            }
                            End::Nothing(missing) => {
                                imply(tree, missing)?;
                                None
                            }
                            End::Outside => None,
                        }
                    }
                    Found::Other => None,
                };
                todo.extend(there.map(|there| (dir, there)));
            }
        }
        Ok(())
    }

    fn root(&self) -> Place {
        Place { path: Vec::new(), tree: Some(NodeId::ROOT), volume: Some(self.inode.clone()) }
    }

    /// Looks up a name in the tree, or else on the volume, unless a source has removed it there.
    async fn look(
        &self,
        tree: &Tree,
        hidden: &BTreeSet<(Vec<u8>, bool)>,
        dir: &Place,
        name: &[u8],
    ) -> Result<Found, BuildError> {
        let path = [&dir.path[..], b"/", name].concat();
        let in_tree = dir.tree.and_then(|dir| tree.lookup(dir, name)).map(|entry| tree.entry_node(entry));
        match in_tree.map(|node| (node, tree.node(node).kind)) {
            None | Some((_, Kind::Directory)) => {}
            Some((node, Kind::Symlink)) => return Ok(Found::Link(tree.symlink_target(node).to_vec())),
            Some(_) => return Ok(Found::Other),
        }
        let is_hidden = !hidden.is_empty()
            && (hidden.contains(&(path.clone(), false)) || hidden.contains(&(dir.path.clone(), true)));
        let volume = match &dir.volume {
            Some(inode) if !is_hidden => {
                let found = self.inode_at(inode, name).await;
                found.map_err(|error| BuildError::volume(&path, error))?
            }
            _ => None,
        };
        let kind = volume.as_ref().and_then(|inode| inode.kind());
        Ok(match (in_tree, volume) {
            (_, Some(inode)) if kind == Some(FileKind::Directory) => {
                Found::Directory(Place { path, tree: in_tree, volume: Some(inode) })
            }
            (Some(_), _) => Found::Directory(Place { path, tree: in_tree, volume: None }),
            (None, Some(inode)) if kind == Some(FileKind::Symlink) => {
                let target = self.volume.read_link(&inode).await;
                Found::VolumeLink(target.map_err(|error| BuildError::volume(&path, error))?)
            }
            (None, _) => Found::Other,
        })
    }

    async fn inode_at(&self, dir: &Inode, name: &[u8]) -> Result<Option<Inode>, Error> {
        match self.volume.lookup(dir, name).await? {
            Some(number) => self.volume.inode(number).await.map(Some),
            None => Ok(None),
        }
    }

    /// Follows a path in the tree and the volume, as if the tree's names had replaced the volume's.
    async fn follow(
        &self,
        tree: &Tree,
        hidden: &BTreeSet<(Vec<u8>, bool)>,
        path: &[u8],
    ) -> Result<End, BuildError> {
        let parts = |path: &[u8]| path.split(|&byte| byte == b'/').map(<[u8]>::to_vec).collect::<Vec<_>>();
        let mut todo = VecDeque::from(parts(path));
        let mut way = vec![self.root()];
        let (mut missing, mut links) = (Vec::new(), 0);
        while let Some(name) = todo.pop_front() {
            match &name[..] {
                b"" | b"." => continue,
                b".." if way.len() == 1 && !self.is_whole => return Ok(End::Outside),
                b".." => {
                    way.truncate((way.len() - 1).max(1));
                    continue;
                }
                _ => {}
            }
            let here = way.last().expect("the root stays");
            let found = self.look(tree, hidden, here, &name).await?;
            let above = here.path.clone();
            let target = match found {
                Found::Directory(place) => {
                    if place.tree.is_none() {
                        missing.push(Missing { above, name, target: None });
                    }
                    way.push(place);
                    continue;
                }
                Found::Link(target) => target,
                Found::VolumeLink(target) => {
                    missing.push(Missing { above, name, target: Some(target.clone()) });
                    target
                }
                Found::Other => return Ok(End::Nothing(missing)),
            };
            links += 1;
            // A link in a cycle leads nowhere.
            if target.is_empty() || links > SYMLINKS_MAX {
                return Ok(End::Nothing(missing));
            }
            if target.starts_with(b"/") {
                if !self.is_whole {
                    return Ok(End::Outside);
                }
                way.truncate(1);
            }
            for part in parts(&target).into_iter().rev() {
                todo.push_front(part);
            }
        }
        Ok(End::Directory(Box::new(way.pop().expect("the root stays")), missing))
    }
}

/// Adds directories and links in this order. Several may be the same, on a way that comes back.
fn imply(tree: &mut Tree, missing: Vec<Missing>) -> Result<(), BuildError> {
    for Missing { above, name, target } in missing {
        let dir = find(tree, &above).expect("the directory was there, or implied before");
        match target {
            None => drop(tree.imply_directory(dir, &name)?),
            Some(target) if tree.lookup(dir, &name).is_none() => {
                tree.imply_symlink(dir, &name, &target)?;
            }
            Some(_) => {}
        }
    }
    Ok(())
}

/// The directory of the tree at a path without links.
fn find(tree: &Tree, path: &[u8]) -> Option<NodeId> {
    let mut names = path.split(|&byte| byte == b'/').filter(|name| !name.is_empty());
    let step = |dir, name: &[u8]| Some(tree.entry_node(tree.lookup(dir, name)?));
    let found = names.try_fold(NodeId::ROOT, step)?;
    (tree.node(found).kind == Kind::Directory).then_some(found)
}

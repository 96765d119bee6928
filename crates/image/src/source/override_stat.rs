//! Owners, modes and types that a rootless container engine stores in an attribute, because it is
//! not allowed to set them (containers/storage, fuse-overlayfs).

use crate::tree::{Kind, NodeId, Payload, Tree, XattrSetId};
use extant_format::UintExt;

/// `UID:GID:MODE`, with the mode in octal. If the file itself does not have the right type, this is
/// followed by `:TYPE`: `block-MAJOR-MINOR`, `char-MAJOR-MINOR`, `pipe` or `socket`.
const NAME: &[u8] = b"user.containers.override_stat";

/// Applies every node's attribute to the node, and removes the attribute. An attribute whose value
/// is not understood is kept.
pub(super) fn apply(tree: &mut Tree) {
    let has_it = |set: &[crate::tree::Xattr]| set.iter().any(|xattr| *xattr.name == *NAME);
    if !tree.xattr_sets().any(has_it) {
        return;
    }
    for id in (0..tree.node_slots().fit_u32()).map(NodeId) {
        let set = tree.node(id).xattrs;
        if set == XattrSetId::EMPTY {
            continue;
        }
        let value = tree.xattrs(set).iter().find(|xattr| *xattr.name == *NAME);
        let Some(stat) = value.and_then(|xattr| Stat::parse(&xattr.value)) else { continue };
        let rest = tree.xattrs(set).iter().filter(|xattr| *xattr.name != *NAME).cloned().collect();
        let rest = tree.intern_xattrs(rest);
        let node = tree.node_mut(id);
        (node.uid, node.gid, node.xattrs) = (stat.uid, stat.gid, rest);
        if node.kind != Kind::Symlink {
            node.mode = stat.mode;
        }
        if let Some((kind, payload)) = stat.special.filter(|_| node.kind == Kind::File) {
            (node.kind, node.payload, node.size) = (kind, payload, 0);
        }
    }
}

#[derive(Debug, PartialEq, Eq)]
struct Stat {
    uid: u32,
    gid: u32,
    mode: u16,
    special: Option<(Kind, Payload)>,
}

impl Stat {
    fn parse(value: &[u8]) -> Option<Self> {
        let text = std::str::from_utf8(value).ok()?.trim_end_matches('\0');
        let mut fields = text.split(':');
        let (uid, gid) = (fields.next()?.parse().ok()?, fields.next()?.parse().ok()?);
        let mode = u32::from_str_radix(fields.next()?, 8).ok()?;
        let special = match fields.next() {
            None | Some("dir" | "file" | "symlink") => None,
            Some("pipe") => Some((Kind::Fifo, Payload::None)),
            Some("socket") => Some((Kind::Socket, Payload::None)),
            Some(device) => {
                let mut words = device.split('-');
                let kind = match words.next()? {
                    "block" => Kind::BlockDevice,
                    "char" => Kind::CharDevice,
                    _ => return None,
                };
                let (major, minor) = (words.next()?.parse().ok()?, words.next()?.parse().ok()?);
                Some((kind, Payload::Device { major, minor }))
            }
        };
        Some(Self { uid, gid, mode: (mode & 0o7777).fit_u16(), special })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tree::{Meta, Xattr};
    use extant_format::Timestamp;

    #[test]
    fn an_attribute_replaces_owner_mode_and_type() {
        let mut tree = Tree::new();
        let mut add = |name: &str, value: &str| {
            let attribute =
                |name: &[u8], value: &str| Xattr { name: name.into(), value: value.as_bytes().into() };
            let xattrs = tree.intern_xattrs(vec![attribute(NAME, value), attribute(b"user.a", "b")]);
            let meta = Meta { mode: 0o700, uid: 1000, gid: 1000, mtime: Timestamp::default(), xattrs };
            tree.put(NodeId::ROOT, name.as_bytes(), Kind::File, meta, Payload::None, 0, None).unwrap()
        };
        let nodes = [
            add("su", "0:5:04755"),
            add("null", "0:0:0666:char-1-3"),
            add("pipe", "7:8:0644:pipe"),
            add("odd", "seven"),
        ];
        apply(&mut tree);
        let seen = nodes.map(|id| {
            let node = tree.node(id);
            (node.kind, node.mode, node.uid, node.gid, node.payload, tree.xattrs(node.xattrs).len())
        });
        let device = Payload::Device { major: 1, minor: 3 };
        assert_eq!(
            seen,
            [
                (Kind::File, 0o4755, 0, 5, Payload::None, 1),
                (Kind::CharDevice, 0o666, 0, 0, device, 1),
                (Kind::Fifo, 0o644, 7, 8, Payload::None, 1),
                (Kind::File, 0o700, 1000, 1000, Payload::None, 2),
            ]
        );
    }
}

//! Changing a program removes its capabilities and set-ID bits.

use super::*;

#[test]
fn a_program_that_is_changed_loses_its_privileges() {
    if !have_tools() {
        return;
    }
    for args in ["-t ext4 16M", "-t ext4 -I 128 16M"] {
        let dir = tempfile::tempdir().unwrap();
        let image = make(dir.path(), args);
        let rt = Rt::real(Default::default());
        let (admin, user) = (Caller::root(), Caller::user(7, 7, Vec::new()));
        let capability = b"security.capability";
        // Revision 2, effective: one permitted capability.
        let value = [&0x0200_0001_u32.to_le_bytes()[..], &[1; 16]].concat();
        rt.block_on(async {
            let bed = Bed::open(&rt, device(&image)).await;
            let root = bed.volume.root_node().await.unwrap();
            let node = root.create(&admin, b"program", 0o755).await.unwrap();
            node.set_xattr(&admin, b"user.other", b"stays", SetMode::Any).await.unwrap();
            for turn in 0..4 {
                node.set_xattr(&admin, capability, &value, SetMode::Any).await.unwrap();
                let set = SetAttributes { permissions: Some(0o6755), ..Default::default() };
                node.set_attributes(&admin, &set).await.unwrap();
                assert_eq!(node.xattr(&admin, capability).await.unwrap(), value);
                let caller = if turn == 0 { &admin } else { &user };
                let file = node.open(caller, Default::default()).unwrap();
                match turn {
                    0 | 1 => drop(file.write(0, b"changed").await.unwrap()),
                    2 => file.set_size(0).await.unwrap(),
                    _ => {
                        let set = SetAttributes { uid: Some(9), ..Default::default() };
                        node.set_attributes(&admin, &set).await.unwrap();
                    }
                }
                let lost = node.xattr(&admin, capability).await;
                assert!(matches!(lost, Err(Error::NoData(_))), "{args}, turn {turn}: {lost:?}");
                if matches!(turn, 1 | 2) {
                    assert_eq!(node.attributes().unwrap().permissions, 0o755, "{args}, turn {turn}");
                }
                assert_eq!(node.xattr(&admin, b"user.other").await.unwrap(), b"stays");
            }
            drop((node, root));
            bed.close().await;
        })
        .unwrap();
        check_is_silent(&image, args);
    }
}

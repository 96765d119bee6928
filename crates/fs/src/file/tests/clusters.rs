//! Partly written or partly dropped clusters (`bigalloc`).

use super::durable::with_gate;
use super::*;

/// The kibibytes of a cluster that are written, each filled with its own byte value.
const FOUR: &[u64] = &[0, 2];
/// Two pages; the rest of the first is clean.
const EIGHT: &[u64] = &[0, 4, 6];

fn byte_of(kib: u64) -> u8 {
    0xb0 + kib as u8
}

/// Writes kibibytes of two clusters, the second of which is fully dirty, and syncs. The write of
/// `failing` fails the first time.
fn write_pieces(cluster: u64, written: &[u64], failing: Option<u64>) {
    let args = format!("-t ext4 -b 1024 -O ^has_journal,bigalloc -C {cluster} -N 64");
    let what = format!("-C {cluster}, {failing:?} fails");
    let mut model = vec![0; 2 * cluster as usize];
    let (first, second) = model.split_at_mut(cluster as usize);
    written.iter().for_each(|&kib| first[(kib as usize) << 10..][..1024].fill(byte_of(kib)));
    second.fill(0xff);
    let found = with_gate(
        &args,
        vec![],
        |_| vec![],
        async |_, bed, gate, number| {
            let (cell, file) = bed.file(number, FileOptions::default()).await;
            file.write(cluster, second).await.unwrap();
            for &kib in written {
                file.write(kib << 10, &first[(kib as usize) << 10..][..1024]).await.unwrap();
            }
            let clusters = || cell.read(|inode| inode.blocks_512(bed.writer.store.shape())) * 512 / cluster;
            assert_eq!(clusters(), 0, "{what}: delayed");
            *gate.unwritable.lock() = failing.map(byte_of);
            if failing.is_some() {
                assert!(matches!(file.sync().await, Err(Error::Io(_))), "{what}");
                // The first block of a cluster to land keeps it.
                let kept = if failing == Some(written[0]) { 1 } else { 2 };
                assert_eq!(clusters(), kept, "{what}");
                *gate.unwritable.lock() = None;
            }
            file.sync().await.unwrap();
            assert_eq!(clusters(), 2, "{what}");
            drop((file, cell));
            bed.files.write_back().await.unwrap();
            bed.commit_counts().await;
        },
    );
    let Some((_dir, image, number)) = found else { return };
    check_is_silent(&image, &what);
    assert!(dumped(&image, number) == model, "{what}");
}

#[test]
fn pieces_of_a_run_share_the_cluster_that_the_first_of_them_allocates() {
    for (cluster, written) in [(4096, FOUR), (8192, EIGHT)] {
        write_pieces(cluster, written, None);
    }
}

#[test]
fn a_cluster_of_which_some_pieces_fail_belongs_to_those_that_landed_with_the_first() {
    for (cluster, written) in [(4096, FOUR), (8192, EIGHT)] {
        written.iter().for_each(|&failing| write_pieces(cluster, written, Some(failing)));
    }
}

#[test]
fn only_pages_that_share_a_cluster_with_a_hole_are_written_before_it_is_allocated() {
    const CLUSTER: u64 = 8192;
    let args = format!("-t ext4 -b 1024 -O ^has_journal,bigalloc -C {CLUSTER} -N 64");
    let found = with_gate(
        &args,
        vec![],
        |_| vec![],
        async |_, bed, gate, number| {
            let (cell, file) = bed.file(number, FileOptions::default()).await;
            let clusters = || cell.read(|inode| inode.blocks_512(bed.writer.store.shape())) * 512 / CLUSTER;
            let all = |keep_size| Fallocate::Allocate { keep_size };
            *gate.unwritable.lock() = Some(0xb0);
            file.write(CLUSTER, &vec![0xb0; CLUSTER as usize]).await.unwrap();
            file.write(2 * CLUSTER + 4096, &[0x11; 4096]).await.unwrap();
            file.write(7 * CLUSTER + 4096, &[0xb0; 4096]).await.unwrap();
            file.fallocate(all(true), 0, 5 * CLUSTER).await.unwrap();
            assert_eq!(clusters(), 4, "but for the one that is dirty as a whole");
            let refused = file.fallocate(all(false), 6 * CLUSTER, 2 * CLUSTER).await;
            assert!(matches!(refused, Err(Error::Io(_))), "{refused:?}");
            *gate.unwritable.lock() = None;
            assert!(matches!(file.sync().await, Err(Error::Io(_))), "the write that failed is reported");
            file.sync().await.unwrap();
            assert_eq!(clusters(), 7, "with one for a node of the map");
            file.fallocate(all(false), 6 * CLUSTER, 2 * CLUSTER).await.unwrap();
            assert_eq!(clusters(), 8);
            drop((file, cell));
            bed.files.write_back().await.unwrap();
            bed.commit_counts().await;
        },
    );
    let Some((_dir, image, number)) = found else { return };
    check_is_silent(&image, "after the allocations");
    let mut model = vec![0; 8 * CLUSTER as usize];
    for (from, to, byte) in [(8192, 16_384, 0xb0), (20_480, 24_576, 0x11), (61_440, 65_536, 0xb0)] {
        model[from..to].fill(byte);
    }
    assert!(dumped(&image, number) == model);
}

#[test]
fn blocks_that_are_dropped_from_a_cluster_are_not_written_before() {
    const CLUSTER: u64 = 8192;
    let args = format!("-t ext4 -b 1024 -O ^has_journal,bigalloc -C {CLUSTER} -N 64");
    let found = with_gate(
        &args,
        vec![3; 4 * CLUSTER as usize],
        |_| vec![],
        async |_, bed, gate, number| {
            let (cell, file) = bed.file(number, FileOptions::default()).await;
            let clusters = || cell.read(|inode| inode.blocks_512(bed.writer.store.shape())) * 512 / CLUSTER;
            assert_eq!(clusters(), 4);
            // Pages over mapped blocks and over delayed ones; none of them can be written.
            *gate.unwritable.lock() = Some(0xb0);
            file.write(4096, &vec![0xb0; 3 * CLUSTER as usize]).await.unwrap();
            file.write(6 * CLUSTER, &vec![0xb0; CLUSTER as usize]).await.unwrap();
            file.fallocate(Fallocate::PunchHole, 4096, 3 * CLUSTER).await.unwrap();
            assert_eq!(clusters(), 2, "the pages around the range keep the first and the last of four");
            file.set_size(6 * CLUSTER + 4096).await.unwrap();
            file.set_size(4096).await.unwrap();
            assert_eq!(clusters(), 1);
            file.sync().await.unwrap();
            drop((file, cell));
            bed.files.write_back().await.unwrap();
            bed.commit_counts().await;
        },
    );
    let Some((_dir, image, number)) = found else { return };
    check_is_silent(&image, "after the punch and the truncations");
    assert!(dumped(&image, number) == vec![3; 4096]);
}

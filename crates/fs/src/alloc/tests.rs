//! Random allocations, frees and abandoned plans.

use crate::testbed::{Bed, Node, check_is_silent, have_tools, make, run};
use extant_rt::{Rng, Rt};

fn judge(name: &str, mib: usize, args: &str, seed: u64) {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    make(&image, mib, args);
    let rt = Rt::real(Default::default());
    let live = rt
        .block_on(async {
            let bed = Bed::open(&rt, &image).await;
            let mut rng = Rng::labelled(seed, name);
            let mut live: Vec<Node> = Vec::new();
            for _ in 0..300 {
                match rng.below(10) {
                    0..=4 if live.len() < 50 => {
                        let is_dir = rng.below(4) == 0;
                        live.extend(bed.create(&mut rng, is_dir).await);
                    }
                    0..=6 if !live.is_empty() => {
                        let node = live.swap_remove(rng.below(live.len() as u64) as usize);
                        bed.delete(node).await;
                    }
                    7 => bed.journal.commit(bed.journal.running()).await.unwrap(),
                    _ => {}
                }
            }
            live.iter().for_each(|node| bed.alloc.close_window(node.cell.number()));
            let numbers: Vec<_> = live.iter().map(|node| node.cell.number()).collect();
            drop(live);
            bed.close().await;
            numbers
        })
        .unwrap();
    let script = dir.path().join("script");
    let lines = live.iter().map(|number| format!("link <{number}> /f{number}\n"));
    std::fs::write(&script, lines.collect::<String>()).unwrap();
    run("debugfs", &["-w", "-f", script.to_str().unwrap(), image.to_str().unwrap()]);
    check_is_silent(&image, &format!("{name}, seed {seed}"));
    let names = run("debugfs", &["-R", "ls", image.to_str().unwrap()]);
    assert!(live.len() > 5 && live.iter().all(|number| names.contains(&format!("f{number} "))), "{names}");
}

#[test]
fn e2fsck_agrees_after_random_allocations_on_every_geometry() {
    if !have_tools() {
        return;
    }
    let seed = std::env::var("EXTANT_SEED").map_or(1, |seed| seed.parse().unwrap());
    for (name, mib, args) in [
        ("ext4 1k, 16 groups of 2 MiB", 32, "-t ext4 -b 1024 -g 2048 -N 2048"),
        ("ext4 4k, flex of 4", 64, "-t ext4 -b 4096 -g 1024 -G 4 -N 2048"),
        ("uninit_bg", 32, "-t ext4 -b 1024 -g 2048 -O ^metadata_csum,uninit_bg -N 4096"),
        ("no group checksums", 32, "-t ext4 -b 1024 -g 2048 -O ^metadata_csum,^uninit_bg -N 4096"),
        ("meta_bg", 64, "-t ext4 -b 1024 -g 1024 -O meta_bg,^resize_inode -N 4096"),
        ("32-byte descriptors", 32, "-t ext4 -b 2048 -g 1024 -O ^64bit,^flex_bg -N 1024"),
        ("ext3", 32, "-t ext3 -b 1024 -g 4096 -I 128"),
        ("ext2", 16, "-t ext2 -b 1024 -I 128"),
        ("full volume", 2, "-t ext4 -b 1024 -O ^has_journal -m 0 -N 64"),
    ] {
        judge(name, mib, args, seed);
    }
}

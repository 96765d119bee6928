//! Blocks written and mapped before earlier ones, so that the recorded size does not cover them
//! yet.

use super::*;
use crate::volume::WriteOptions;

/// The lines of e2fsck's repair about sizes and orphans. A second run on the repaired copy must
/// report nothing.
fn repaired(image: &Path, what: &str) -> (PathBuf, Vec<String>) {
    let copy = image.with_extension("crashed");
    std::fs::copy(image, &copy).unwrap();
    let said = run("e2fsck", &["-fy", copy.to_str().unwrap()]);
    check_is_silent(&copy, what);
    let told = |line: &&str| line.contains("i_size") || line.starts_with("Truncating orphaned");
    (copy, said.lines().filter(told).map(str::to_owned).collect())
}

async fn commit(volume: &Volume) {
    let journal = &volume.writer().unwrap().journal;
    journal.commit(journal.running()).await.unwrap();
}

#[test]
fn a_crash_cuts_off_what_was_written_before_the_bytes_in_front_of_it() {
    if !have_tools() {
        return;
    }
    for args in [
        "-t ext4 -b 4096 -O orphan_file -N 64",
        "-t ext4 -b 1024 -O ^orphan_file -N 64",
        "-t ext3 -b 1024 -I 128 -N 64",
    ] {
        let dir = tempfile::tempdir().unwrap();
        let start = vec![1; 5000];
        let image = make(dir.path(), 16, args, std::slice::from_ref(&start));
        let rt = Rt::real(Default::default());
        rt.block_on(async {
            let number = numbers(&image, 1).await[0];
            let cache = PageCache::new(&rt, CacheConfig::with_budget(4 << 20)).unwrap();
            let disk = cache.attach(device(&image));
            let options =
                WriteOptions { fixed_time: Some(NOW), commit_interval: None, ..WriteOptions::default() };
            let volume = Volume::open_writable(&rt, &disk, options).await.unwrap();
            let file = volume.open_for_writing(number, FileOptions::default()).await.unwrap();
            let judge = async |expected: &[u8], orphans: usize, what: &str| {
                commit(&volume).await;
                let what = format!("{args}, {what}");
                let (copy, told) = repaired(&image, &what);
                assert_eq!(told.len(), orphans, "{what}: {told:?}");
                assert!(told.iter().all(|line| line.starts_with("Truncating orphaned")), "{what}: {told:?}");
                assert!(dumped(&copy, number) == expected, "{what}");
                std::fs::copy(&image, &copy).unwrap();
                crate::recover(&rt, device(&copy), Default::default()).await.unwrap();
                check_is_silent(&copy, &what);
                assert!(dumped(&copy, number) == expected, "{what}, by our recovery");
            };
            let mut model = start.clone();
            model.resize(105_000, 2);
            file.write(5000, &model[5000..]).await.unwrap();
            file.write_out(ByteRange::new(65_536, 105_000)).await.unwrap();
            judge(&start, 1, "the end is written").await;
            file.write_out(ByteRange::new(16_384, 32_768)).await.unwrap();
            judge(&start, 1, "the middle is written").await;
            file.write_out(ByteRange::ALL).await.unwrap();
            judge(&model, 0, "all is written").await;
            model.resize(200_000, 3);
            file.write(105_000, &model[105_000..]).await.unwrap();
            file.write_out(ByteRange::new(163_840, 200_000)).await.unwrap();
            judge(&model[..105_000], 1, "more is written").await;
            file.set_size(90_000).await.unwrap();
            model.truncate(90_000);
            judge(&model, 0, "it was made smaller").await;
            model.resize(150_000, 4);
            file.write(90_000, &model[90_000..]).await.unwrap();
            file.write_out(ByteRange::new(131_072, 150_000)).await.unwrap();
            // Missing data read as zeroes, since the caller asked for this size.
            file.set_size(160_000).await.unwrap();
            model.resize(160_000, 0);
            commit(&volume).await;
            assert_eq!(repaired(&image, args).1, [""; 0], "{args}: it was made larger");
            file.sync().await.unwrap();
            judge(&model, 0, "it was synced").await;
            drop(file);
            volume.close().await.unwrap();
        })
        .unwrap();
        check_is_silent(&image, args);
    }
}

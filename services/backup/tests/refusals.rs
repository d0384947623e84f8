//! What was written is read; what was cut short, altered or made by another version is refused, with what to do.

use std::fs;
use std::path::{Path, PathBuf};

use holdfast_backup::{Backup, BackupError, BackupWriter, ShardFile};
use tempfile::TempDir;

fn shard_file(shard: &str) -> ShardFile {
    ShardFile {
        shard: shard.to_owned(),
        file: String::new(),
        bytes: 0,
        sha256: String::new(),
        term: 3,
        rules: 1,
        index: 17,
        lower_bound: 0,
        upper_bound: u32::MAX,
    }
}

fn chunks() -> Vec<Vec<u8>> {
    vec![vec![7; 100_000], Vec::new(), vec![9]]
}

fn add_shard(writer: &mut BackupWriter, shard: &str) {
    // What a leader has sent before it was replaced.
    writer.begin_shard(shard).unwrap().write(b"cut short").unwrap();
    let mut state = writer.begin_shard(shard).unwrap();
    chunks().iter().for_each(|chunk| state.write(chunk).unwrap());
    writer.add_shard(shard_file(shard), state).unwrap();
}

fn write_backup() -> (TempDir, PathBuf) {
    let dir = TempDir::new().unwrap();
    let path = dir.path().join("monday");
    let mut writer = BackupWriter::create(&path, "cluster", 4, "2026-01-01T00:00:00Z".to_owned()).unwrap();
    assert!(!path.exists());
    for shard in ["accounts_00", "locks_00"] {
        add_shard(&mut writer, shard);
    }
    writer.finish().unwrap();
    (dir, path)
}

fn verify_error(path: &Path) -> String {
    Backup::open(path).and_then(|backup| backup.verify()).unwrap_err().to_string()
}

#[test]
fn what_was_written_is_read() {
    let (_dir, path) = write_backup();
    let backup = Backup::open(&path).unwrap();
    assert_eq!(backup.manifest().shards.len(), 2);
    let locks = backup.shard_file("locks_00").unwrap();
    assert_eq!((locks.term, locks.index), (3, 17));
    let read: Vec<Vec<u8>> = backup.chunks(locks).unwrap().map(|chunk| chunk.unwrap().to_vec()).collect();
    assert_eq!(read, chunks());
    let unknown = backup.shard_file("locks_99").unwrap_err();
    assert!(matches!(unknown, BackupError::ShardNotFound { .. }), "{unknown}");
}

#[test]
fn nothing_is_overwritten_and_a_run_that_was_interrupted_leaves_no_backup() {
    let (dir, path) = write_backup();
    let again = BackupWriter::create(&path, "cluster", 4, String::new()).unwrap_err().to_string();
    assert!(again.contains("choose a new directory"), "{again}");
    let other = dir.path().join("tuesday");
    let mut writer = BackupWriter::create(&other, "cluster", 4, String::new()).unwrap();
    add_shard(&mut writer, "locks_00");
    drop(writer);
    assert!(verify_error(&other).contains("cut short"), "{}", verify_error(&other));
    BackupWriter::create(&other, "cluster", 4, String::new()).unwrap().finish().unwrap();
}

#[test]
fn a_file_that_was_cut_short_altered_or_lost_is_refused_by_name() {
    let damages: [fn(&Path); 3] = [
        |file| fs::write(file, &fs::read(file).unwrap()[..50_000]).unwrap(),
        |file| {
            let mut bytes = fs::read(file).unwrap();
            bytes[50_000] ^= 1;
            fs::write(file, bytes).unwrap();
        },
        |file| fs::remove_file(file).unwrap(),
    ];
    for damage in damages {
        let (_dir, path) = write_backup();
        damage(&path.join("locks_00.state"));
        let refusal = verify_error(&path);
        assert!(refusal.contains("locks_00.state"), "{refusal}");
    }
}

#[test]
fn an_altered_manifest_and_another_format_are_refused() {
    let (_dir, path) = write_backup();
    let manifest = path.join("manifest.json");
    let text = fs::read_to_string(&manifest).unwrap();
    fs::write(&manifest, text.replace("\"index\": 17", "\"index\": 18")).unwrap();
    assert!(verify_error(&path).contains("its checksum is wrong"), "{}", verify_error(&path));
    fs::write(&manifest, text.replace("\"format\": 1", "\"format\": 2")).unwrap();
    assert!(
        verify_error(&path).contains("format 2") && verify_error(&path).contains("use the version"),
        "{}",
        verify_error(&path)
    );
    fs::write(&manifest, &text[..text.len() / 2]).unwrap();
    assert!(verify_error(&path).contains("use another one"), "{}", verify_error(&path));
}

//! Opening a SQLite file.

use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use rustix::fs::{Access, AtFlags, CWD, accessat};
use rustix::io::Errno;
use sqlx::sqlite::{SqliteConnectOptions, SqliteJournalMode, SqlitePoolOptions, SqliteSynchronous};

use super::link::{Doubt, Link, Own, Shared};
use super::open::OpenError;
use super::options::Pooler;
use super::sql_store::Connections;
use super::sqlite::SqliteDialect;
use super::targets::Targets;

/// How long a write waits for another process's.
const BUSY: Duration = Duration::from_secs(10);
/// Connections that read outside the gathered look-ups.
const READERS: u32 = 4;
/// An exhausted pool refuses after this.
const ACQUIRE: Duration = Duration::from_secs(2);

/// Every connection waits for others, and commits are on the disk when they return.
pub fn writer_options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new()
        .filename(path)
        .create_if_missing(false)
        .journal_mode(SqliteJournalMode::Wal)
        .synchronous(SqliteSynchronous::Full)
        .busy_timeout(BUSY)
        // A log that a long reader let grow is cut again.
        .pragma("journal_size_limit", "67108864")
}

/// For a look at a file that may be somebody else's: nothing of it is changed.
pub fn look_options(path: &Path) -> SqliteConnectOptions {
    SqliteConnectOptions::new().filename(path).create_if_missing(false).busy_timeout(BUSY).pragma("query_only", "ON")
}

pub fn reader_options(path: &Path) -> SqliteConnectOptions {
    writer_options(path).pragma("query_only", "ON")
}

/// One connection writes, the others read.
pub fn connections(path: &Path) -> Connections<SqliteDialect> {
    let doubt = Arc::<Doubt>::default();
    let name = path.display().to_string();
    let shared = |options| Shared {
        targets: Arc::new(Targets::one(name.clone(), options)),
        doubt: Arc::clone(&doubt),
        pooler: Pooler::None,
    };
    let writer = Own::new(&shared(writer_options(path)));
    let reading = shared(reader_options(path));
    let pool = |options: &SqliteConnectOptions| {
        SqlitePoolOptions::new()
            .max_connections(READERS)
            .acquire_timeout(ACQUIRE)
            .test_before_acquire(false)
            .connect_lazy_with(options.clone())
    };
    Connections {
        link: Link::new(Box::new(pool), Some(writer.clone()), reading.clone()),
        writers: vec![writer.clone()],
        readers: vec![Own::new(&reading)],
        heart: writer,
        watch: Some(Own::new(&reading)),
        ears: None,
    }
}

/// Makes sure that the file is there, is ours alone (EXEC-25), and lies where SQLite's locks work. SQLite gives its log
/// the same permissions.
pub fn prepare_file(path: &Path) -> Result<(), OpenError> {
    check_folder(path)?;
    check_access(path)?;
    let mut options = std::fs::OpenOptions::new();
    options.write(true).create(true).truncate(false);
    #[cfg(unix)]
    std::os::unix::fs::OpenOptionsExt::mode(&mut options, 0o600);
    options.open(path).map(|_| ()).map_err(|error| file_error(path, &error))
}

/// Whether a file that is there is a database, and whether this user may write all that SQLite writes.
pub fn check_access(path: &Path) -> Result<(), OpenError> {
    // SQLite writes beside the file itself, wherever a link to it lies.
    let path = &std::fs::canonicalize(path).unwrap_or_else(|_| path.to_path_buf());
    let beside = |end: &str| {
        let mut name = path.as_os_str().to_owned();
        name.push(end);
        PathBuf::from(name)
    };
    for file in [path.to_path_buf(), beside("-wal"), beside("-shm")] {
        if file.is_dir() {
            return Err(OpenError::File { path: file, detail: "it is a folder: name a file".to_owned() });
        }
        may_write_if_there(&file, Access::READ_OK | Access::WRITE_OK)?;
    }
    may_write(folder_of(path), Access::WRITE_OK | Access::EXEC_OK)?;
    if path.exists() && !has_header(path).map_err(|error| file_error(path, &error))? {
        let detail = "it is no SQLite database: name another file".to_owned();
        return Err(OpenError::File { path: path.to_path_buf(), detail });
    }
    Ok(())
}

fn may_write(path: &Path, access: Access) -> Result<(), OpenError> {
    accessat(CWD, path, access, AtFlags::EACCESS).map_err(|errno| not_writable(path, errno))
}

/// By one look: the last process that closes a database deletes its log, at any moment.
fn may_write_if_there(path: &Path, access: Access) -> Result<(), OpenError> {
    match accessat(CWD, path, access, AtFlags::EACCESS) {
        Ok(()) | Err(Errno::NOENT) => Ok(()),
        Err(errno) => Err(not_writable(path, errno)),
    }
}

fn not_writable(path: &Path, errno: Errno) -> OpenError {
    OpenError::NotWritable { path: in_full(path), detail: std::io::Error::from(errno).to_string() }
}

/// An empty file is a database that nothing was written to.
fn has_header(path: &Path) -> std::io::Result<bool> {
    const HEADER: &[u8; 16] = b"SQLite format 3\0";
    let mut found = Vec::new();
    std::fs::File::open(path)?.take(HEADER.len() as u64).read_to_end(&mut found)?;
    Ok(found.is_empty() || found == HEADER)
}

/// From the root, for people who may be in another folder than they think.
pub fn in_full(path: &Path) -> PathBuf {
    std::path::absolute(path).unwrap_or_else(|_| path.to_path_buf())
}

fn folder_of(path: &Path) -> &Path {
    match path.parent() {
        Some(folder) if !folder.as_os_str().is_empty() => folder,
        _ => Path::new("."),
    }
}

pub fn check_folder(path: &Path) -> Result<(), OpenError> {
    let folder = folder_of(path);
    if !folder.is_dir() {
        return Err(OpenError::MissingFolder(folder.to_path_buf()));
    }
    match network_file_system(folder).map_err(|error| file_error(path, &error))? {
        Some(kind) => Err(OpenError::NetworkFileSystem { path: path.to_path_buf(), kind }),
        None => Ok(()),
    }
}

fn file_error(path: &Path, error: &std::io::Error) -> OpenError {
    OpenError::File { path: path.to_path_buf(), detail: error.to_string() }
}

/// The name of the network file system that the folder is on, if it is on one.
#[cfg(target_os = "linux")]
fn network_file_system(folder: &Path) -> std::io::Result<Option<String>> {
    const FUSE: u32 = 0x6573_5546;
    #[expect(
        clippy::cast_possible_truncation,
        clippy::cast_sign_loss,
        reason = "the kernel's magic numbers have 32 bits"
    )]
    let magic = rustix::fs::statfs(folder)?.f_type as u32;
    if magic != FUSE {
        return Ok(network_magic(magic).map(str::to_owned));
    }
    let folder = folder.canonicalize()?;
    Ok(mounted_type(&std::fs::read_to_string("/proc/self/mountinfo")?, &folder).filter(|kind| is_remote_fuse(kind)))
}

#[cfg(not(target_os = "linux"))]
fn network_file_system(_folder: &Path) -> std::io::Result<Option<String>> {
    Ok(None)
}

#[cfg(target_os = "linux")]
fn network_magic(magic: u32) -> Option<&'static str> {
    match magic {
        0x6969 => Some("nfs"),
        0x517B => Some("smb"),
        0xFF53_4D42 => Some("cifs"),
        0xFE53_4D42 => Some("smb2"),
        0x0102_1997 => Some("9p"),
        0x00C3_6400 => Some("ceph"),
        0x5346_414F | 0x6B41_4653 => Some("afs"),
        0x7375_7245 => Some("coda"),
        0x0BD0_0BD0 => Some("lustre"),
        _ => None,
    }
}

/// Local ones: NTFS and exFAT drivers, the overlays of rootless containers, encrypted folders.
#[cfg(target_os = "linux")]
fn is_remote_fuse(kind: &str) -> bool {
    const LOCAL: [&str; 8] = [
        "fuseblk",
        "fuse.fuse-overlayfs",
        "fuse.gocryptfs",
        "fuse.encfs",
        "fuse.cryfs",
        "fuse.mergerfs",
        "fuse.bindfs",
        "fuse.ntfs-3g",
    ];
    !LOCAL.contains(&kind)
}

/// The type of the file system that a path is on, by the longest mount point in `/proc/self/mountinfo`.
#[cfg(target_os = "linux")]
fn mounted_type(mounts: &str, path: &Path) -> Option<String> {
    let mounted = mounts.lines().filter_map(|line| {
        let (before, after) = line.split_once(" - ")?;
        let point = before.split(' ').nth(4)?.replace("\\040", " ");
        let kind = after.split(' ').next()?;
        path.starts_with(&point).then(|| (point.len(), kind.to_owned()))
    });
    // Of several mounts on one point the last is on top.
    mounted.max_by_key(|(length, _)| *length).map(|(_, kind)| kind)
}

#[cfg(all(test, target_os = "linux"))]
mod tests {
    use super::*;

    #[test]
    fn network_file_systems_are_known_by_their_numbers() {
        assert_eq!(network_magic(0x6969), Some("nfs"));
        assert_eq!(network_magic(0xEF53), None, "ext4");
        assert_eq!(network_file_system(Path::new("/proc")).unwrap(), None);
    }

    #[test]
    fn what_a_link_leads_to_is_looked_at() {
        let folders = [(); 2].map(|()| tempfile::tempdir().unwrap());
        let [file, link] = [0, 1].map(|at| folders[at].path().join("taskhold.db"));
        std::fs::write(&file, "").unwrap();
        std::os::unix::fs::symlink(&file, &link).unwrap();
        assert!(check_access(&link).is_ok());
        std::fs::create_dir(folders[0].path().join("taskhold.db-wal")).unwrap();
        assert!(matches!(check_access(&link), Err(OpenError::File { .. })));
    }

    #[test]
    fn a_log_that_is_not_there_any_more_is_in_nobodys_way() {
        let folder = tempfile::tempdir().unwrap();
        assert!(may_write_if_there(&folder.path().join("taskhold.db-wal"), Access::WRITE_OK).is_ok());
        assert!(may_write(&folder.path().join("none"), Access::WRITE_OK).is_err());
    }

    #[test]
    fn a_fuse_mount_is_known_by_its_type() {
        let mounts = "22 1 8:1 / / rw,relatime shared:1 - ext4 /dev/sda1 rw\n\
                      40 22 0:35 / /mnt/far\\040away rw shared:2 - fuse.sshfs host:/ rw\n\
                      41 22 0:36 / /mnt/box rw - fuse.fuse-overlayfs none rw\n";
        assert_eq!(mounted_type(mounts, Path::new("/mnt/far away/x")).as_deref(), Some("fuse.sshfs"));
        assert_eq!(mounted_type(mounts, Path::new("/mnt/box")).as_deref(), Some("fuse.fuse-overlayfs"));
        assert_eq!(mounted_type(mounts, Path::new("/srv")).as_deref(), Some("ext4"));
        assert!(is_remote_fuse("fuse.sshfs") && is_remote_fuse("fuse.s3fs") && !is_remote_fuse("fuse.fuse-overlayfs"));
    }
}

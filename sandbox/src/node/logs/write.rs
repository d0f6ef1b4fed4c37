//! Writes a log and rotates it. A full disk loses lines, counted, and never the container.

use std::fs::{self, File, OpenOptions};
use std::io::{BufWriter, Write};
use std::path::PathBuf;

use k8s_openapi::jiff::Timestamp;

use super::rotated;

/// A log file being written.
#[derive(Debug)]
pub struct LogWriter {
    path: PathBuf,
    limit: u64,
    files: u32,
    size: u64,
    file: Option<BufWriter<File>>,
    lost: u64,
}

impl LogWriter {
    /// A log at `path`, rotated at `limit` bytes, `files` kept in all.
    pub fn new(path: PathBuf, limit: u64, files: u32) -> Self {
        let mut writer = Self { path, limit: limit.max(1024), files: files.max(1), size: 0, file: None, lost: 0 };
        writer.open();
        writer
    }

    fn open(&mut self) {
        if let Some(folder) = self.path.parent() {
            let _ = fs::create_dir_all(folder);
        }
        self.file = OpenOptions::new().create(true).append(true).open(&self.path).ok().map(BufWriter::new);
        self.size = fs::metadata(&self.path).map(|data| data.len()).unwrap_or(0);
    }

    /// Appends one line; `whole` is false when the line goes on in the next record.
    pub fn line(&mut self, stream: &str, whole: bool, text: &[u8]) {
        if self.size >= self.limit {
            self.rotate();
        }
        let time = Timestamp::now();
        let head = format!("{time:.9} {stream} {} ", if whole { 'F' } else { 'P' });
        let written = self.file.as_mut().map(|file| {
            file.write_all(head.as_bytes()).and_then(|()| file.write_all(text)).and_then(|()| file.write_all(b"\n"))
        });
        match written {
            Some(Ok(())) => self.size += (head.len() + text.len() + 1) as u64,
            _ => {
                self.lost += 1;
                self.open();
            }
        }
    }

    /// Hands what was written to the file system.
    pub fn flush(&mut self) {
        if let Some(Err(_)) = self.file.as_mut().map(Write::flush) {
            self.lost += 1;
        }
    }

    /// Lines that could not be written.
    pub fn lost(&self) -> u64 {
        self.lost
    }

    fn rotate(&mut self) {
        self.flush();
        self.file = None;
        for age in (1..self.files).rev() {
            let _ = fs::rename(rotated(&self.path, age - 1), rotated(&self.path, age));
        }
        if self.files == 1 {
            let _ = fs::remove_file(&self.path);
        }
        self.open();
    }
}

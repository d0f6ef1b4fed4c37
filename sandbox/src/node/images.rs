//! Which program an image means. An image is a name for one program on this machine; it is never pulled.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

use thiserror::Error;

/// Why there is no program.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ImageError {
    /// No `--image` names it. Kubernetes shows it as `ErrImageNeverPull`.
    #[error("container image \"{0}\" is not mapped to a program on this node: start cell-node with --image {0}=PATH")]
    Unknown(String),
    /// The flag is not REF=PATH.
    #[error("--image {0} is not of the form REF=PATH")]
    Flag(String),
    /// The program of the command is nowhere.
    #[error("command {0} is neither the image's program nor a file in the Pod's folder, on this machine or in PATH")]
    Command(String),
}

/// Images and their programs.
#[derive(Debug, Clone, Default)]
pub struct Images(BTreeMap<String, PathBuf>);

impl Images {
    /// Reads `REF=PATH` flags.
    ///
    /// # Errors
    /// [`ImageError::Flag`] for anything else.
    pub fn parse(flags: &[String]) -> Result<Self, ImageError> {
        let mut map = BTreeMap::new();
        for flag in flags {
            let (name, path) = flag
                .split_once('=')
                .filter(|(name, path)| !name.is_empty() && !path.is_empty())
                .ok_or_else(|| ImageError::Flag(flag.clone()))?;
            map.insert(canonical(name), PathBuf::from(path));
        }
        Ok(Self(map))
    }

    /// The program of an image.
    ///
    /// # Errors
    /// [`ImageError::Unknown`] when no flag names it.
    pub fn program(&self, image: &str) -> Result<&Path, ImageError> {
        self.0.get(&canonical(image)).map(PathBuf::as_path).ok_or_else(|| ImageError::Unknown(image.to_owned()))
    }

    /// Names and programs, for the node's status.
    pub fn all(&self) -> impl Iterator<Item = (&String, &PathBuf)> {
        self.0.iter()
    }
}

/// The full form of an image name: registry, repository and tag or digest.
fn canonical(image: &str) -> String {
    let (first, rest) = image.split_once('/').unwrap_or(("", image));
    let named_host = first.contains('.') || first.contains(':') || first == "localhost";
    let full = match (first.is_empty(), named_host) {
        (true, _) => format!("docker.io/library/{rest}"),
        (false, true) => image.to_owned(),
        (false, false) => format!("docker.io/{image}"),
    };
    let last = full.rsplit('/').next().unwrap_or("");
    if last.contains(':') || last.contains('@') { full } else { format!("{full}:latest") }
}

/// The program a container's `command` means: the image's own when it is not given or bears its file name; else a file relative to
/// the Pod's folder, an absolute path of this machine, or a name in PATH.
///
/// # Errors
/// [`ImageError::Command`] when it is nowhere.
pub fn program_of(image: &Path, command: &[String], folder: &Path, path: &str) -> Result<PathBuf, ImageError> {
    let Some(first) = command.first() else { return Ok(image.to_owned()) };
    let word = Path::new(first);
    if word.file_name().is_some() && word.file_name() == image.file_name() {
        return Ok(image.to_owned());
    }
    let candidates: Vec<PathBuf> = if first.contains('/') {
        vec![folder.join(first.trim_start_matches('/')), word.to_owned()]
    } else {
        path.split(':').filter(|folder| !folder.is_empty()).map(|folder| Path::new(folder).join(first)).collect()
    };
    candidates.into_iter().find(|path| path.is_file()).ok_or_else(|| ImageError::Command(first.clone()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn short_and_full_names_are_one_image() {
        let images = Images::parse(&["cellplane/cell:dev=/bin/cell".into()]).unwrap();
        assert_eq!(images.program("docker.io/cellplane/cell:dev").unwrap(), Path::new("/bin/cell"));
        assert_eq!(images.program("cell:dev"), Err(ImageError::Unknown("cell:dev".into())));
        assert!(Images::parse(&["nothing".into()]).is_err());
    }

    #[test]
    fn a_command_of_the_programs_name_is_the_program_and_others_are_looked_up() {
        let image = Path::new("/opt/build/cell");
        let folder = Path::new("/nowhere");
        let of = |command: &[&str]| {
            let command: Vec<_> = command.iter().map(|word| (*word).to_owned()).collect();
            program_of(image, &command, folder, "/usr/bin:/bin")
        };
        assert_eq!(of(&[]).unwrap(), image);
        assert_eq!(of(&["/cell", "gateway"]).unwrap(), image);
        assert_eq!(of(&["/bin/sh"]).unwrap(), Path::new("/bin/sh"));
        assert!(of(&["sh"]).unwrap().ends_with("sh"));
        assert_eq!(of(&["no-such-program"]), Err(ImageError::Command("no-such-program".into())));
    }
}

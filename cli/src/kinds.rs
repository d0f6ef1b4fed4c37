//! The kinds that reads know, and where their API is.

use k8s_openapi::api::core::v1::Pod;
use kube::Resource;
use kube::api::ApiResource;

/// A kind, as named on the command line.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Kind {
    /// `fleets`.
    Fleets,
    /// `cells`.
    Cells,
    /// `guilds`.
    Guilds,
    /// `moves`.
    Moves,
    /// `storagecells`.
    StorageCells,
    /// `storagemigrations`.
    StorageMigrations,
    /// `pods`: those of the fleet.
    Pods,
}

impl Kind {
    /// Every kind.
    pub const ALL: [Self; 7] =
        [Self::Fleets, Self::Cells, Self::Guilds, Self::Moves, Self::StorageCells, Self::StorageMigrations, Self::Pods];

    /// The plural, as in URLs.
    pub fn plural(self) -> &'static str {
        match self {
            Self::Fleets => "fleets",
            Self::Cells => "cells",
            Self::Guilds => "guilds",
            Self::Moves => "moves",
            Self::StorageCells => "storagecells",
            Self::StorageMigrations => "storagemigrations",
            Self::Pods => "pods",
        }
    }

    /// The kind in manifests.
    pub fn singular(self) -> &'static str {
        match self {
            Self::Fleets => "Fleet",
            Self::Cells => "Cell",
            Self::Guilds => "Guild",
            Self::Moves => "Move",
            Self::StorageCells => "StorageCell",
            Self::StorageMigrations => "StorageMigration",
            Self::Pods => "Pod",
        }
    }

    fn short(self) -> &'static str {
        match self {
            Self::Fleets => "flt",
            Self::Cells => "cll",
            Self::Guilds => "gld",
            Self::Moves => "mv",
            Self::StorageCells => "stc",
            Self::StorageMigrations => "smg",
            Self::Pods => "po",
        }
    }

    /// Where its API is.
    pub fn resource(self) -> ApiResource {
        match self {
            Self::Fleets => ApiResource::erase::<cell_crds::Fleet>(&()),
            Self::Cells => ApiResource::erase::<cell_crds::Cell>(&()),
            Self::Guilds => ApiResource::erase::<cell_crds::Guild>(&()),
            Self::Moves => ApiResource::erase::<cell_crds::Move>(&()),
            Self::StorageCells => ApiResource::erase::<cell_crds::StorageCell>(&()),
            Self::StorageMigrations => ApiResource::erase::<cell_crds::StorageMigration>(&()),
            Self::Pods => ApiResource::erase::<Pod>(&()),
        }
    }

    /// The name given on the command line as the resource's name: a guild may be given by its bare id.
    pub fn object_name(self, given: &str) -> String {
        let bare_id = !given.is_empty() && given.bytes().all(|byte| byte.is_ascii_digit());
        if self == Self::Guilds && bare_id { guild_object(given) } else { given.to_owned() }
    }

    /// The `-o name` form.
    pub fn qualified(self, name: &str) -> String {
        let group = if self == Self::Pods { Pod::group(&()) } else { cell_crds::GROUP.into() };
        let singular = self.singular().to_lowercase();
        if group.is_empty() { format!("{singular}/{name}") } else { format!("{singular}.{group}/{name}") }
    }
}

/// The name of a guild's resource.
pub fn guild_object(guild_id: &str) -> String {
    format!("g-{guild_id}")
}

impl std::str::FromStr for Kind {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let wanted = text.to_lowercase();
        let named =
            |kind: &Self| wanted == kind.plural() || wanted == kind.singular().to_lowercase() || wanted == kind.short();
        Self::ALL.into_iter().find(named).ok_or_else(|| {
            let known: Vec<&str> = Self::ALL.into_iter().map(Self::plural).collect();
            format!("no such kind; there are {}", known.join(", "))
        })
    }
}

/// Reads a decimal guild id.
///
/// # Errors
/// What is wrong with the text.
pub fn guild_id(text: &str) -> Result<String, String> {
    match text.parse::<i64>() {
        Ok(id) if id > 0 && id.to_string() == text => Ok(text.to_owned()),
        _ => Err("a guild id is a decimal number from 1 to 9223372036854775807".to_owned()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_kind_is_known_by_plural_singular_and_short_name() {
        for kind in Kind::ALL {
            for name in [kind.plural(), kind.singular(), kind.short()] {
                assert_eq!(name.parse(), Ok(kind), "{name}");
            }
            assert_eq!(kind.resource().kind, kind.singular());
            assert_eq!(kind.resource().plural, kind.plural());
        }
        assert!("cellplane".parse::<Kind>().unwrap_err().contains("storagecells"));
    }

    #[test]
    fn short_names_are_those_of_the_definitions() {
        for definition in cell_crds::all() {
            let names = definition.spec.names;
            let kind: Kind = names.plural.parse().unwrap();
            assert_eq!(names.short_names.unwrap_or_default(), vec![kind.short().to_owned()]);
        }
    }

    #[test]
    fn a_guild_may_be_given_by_its_bare_id() {
        assert_eq!(Kind::Guilds.object_name("5"), "g-5");
        assert_eq!(Kind::Guilds.object_name("g-5"), "g-5");
        assert_eq!(Kind::Cells.object_name("5"), "5");
        assert_eq!(Kind::Guilds.qualified("g-5"), "guild.cellplane.dev/g-5");
        assert_eq!(Kind::Pods.qualified("p"), "pod/p");
    }

    #[test]
    fn only_decimal_snowflakes_are_guild_ids() {
        assert!(guild_id("9223372036854775807").is_ok());
        for text in ["", "0", "-1", "05", "+5", "9223372036854775808", "g5", "5 "] {
            assert!(guild_id(text).is_err(), "{text}");
        }
    }
}

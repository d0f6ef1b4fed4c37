//! Resources for tests.

use cell_crds::{
    Availability, Cell, CellSpec, EmbeddedSpec, Engine, EntrySpec, EtcdSpec, Fleet, FleetSpec, ImageSpec, Roles,
    StorageCell, StorageCellSpec,
};

pub(crate) fn fleet() -> Fleet {
    let mut fleet = Fleet::new(
        "prod",
        FleetSpec {
            etcd: EtcdSpec {
                endpoints: vec!["10.0.0.1:2379".into()],
                prefix: "/cellplane/prod/".into(),
                secret_ref: None,
            },
            entry: EntrySpec {
                host: "chat.example".into(),
                port: 30_080,
                tls_secret_ref: None,
                service: cell_crds::fleet::EntryService::NodePort,
            },
            image: ImageSpec { cell: "cellplane/cell:dev".into(), pull_policy: None },
            token_keys_ref: None,
            bootstrap_cells: vec!["shared-1".into(), "shared-2".into()],
            dedicated_template: None,
            paused: false,
        },
    );
    fleet.metadata.namespace = Some("prod".into());
    fleet.metadata.uid = Some("5a5a".into());
    fleet
}

pub(crate) fn cell(name: &str, storage: &str) -> Cell {
    let spec = CellSpec {
        roles: Roles::default(),
        storage_cell_ref: storage.into(),
        voice_regions: Vec::new(),
        weight: 100,
        availability: Availability::Active,
        evacuation_policy: None,
    };
    let mut cell = Cell::new(name, spec);
    cell.metadata.namespace = Some("prod".into());
    cell.metadata.uid = Some(format!("uid-{name}"));
    cell
}

pub(crate) fn storage_cell(name: &str) -> StorageCell {
    let spec = StorageCellSpec {
        engine: Engine::Embedded,
        embedded: Some(EmbeddedSpec::default()),
        external: None,
        managed: None,
        keyspace: None,
        replication: Default::default(),
        consistency: None,
        deletion_policy: cell_crds::DeletionPolicy::Retain,
    };
    let mut storage = StorageCell::new(name, spec);
    storage.metadata.namespace = Some("prod".into());
    storage.metadata.uid = Some(format!("uid-{name}"));
    storage
}

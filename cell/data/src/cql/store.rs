//! The CQL engine as a [`Store`]: takes requests apart and gives each to the part that knows it. It decides nothing itself.

use async_trait::async_trait;
use cell_proto::v1::{DescribeReply, DropSegmentReply, ReadCursorReply, ReadHeadReply, WriteCursorReply, WriteReply};
use cell_store::schema::Schema;
use cell_store::{Reply, Request, Store, StoreError};

use super::capability::{Capabilities, Engine};
use super::connect::{Connection, connect};
use super::migrations;
use super::settings::Settings;
use super::statements::Statements;

/// A keyspace as a store.
pub struct CqlStore {
    pub(super) statements: Statements,
    pub(super) schema: Schema,
}

impl CqlStore {
    /// Connects to the platform's keyspace, whose schema must be applied.
    ///
    /// # Errors
    /// [`StoreError::Unavailable`], [`StoreError::NewerVersion`].
    pub async fn open(settings: Settings) -> Result<Self, StoreError> {
        Self::over(connect(settings).await?, Schema::platform().clone()).await
    }

    /// A store over a connection, with tables of its own; their schema must be applied.
    ///
    /// # Errors
    /// As [`CqlStore::open`].
    pub async fn over(connection: Connection, schema: Schema) -> Result<Self, StoreError> {
        migrations::check(&connection).await?;
        Ok(Self { statements: Statements::new(connection)?, schema })
    }

    /// What the server can do.
    pub fn capabilities(&self) -> &Capabilities {
        &self.statements.connection.capabilities
    }

    fn describe(&self) -> DescribeReply {
        let engine = match self.capabilities().engine {
            Engine::Scylla => "scylla",
            Engine::Cassandra => "cassandra",
            Engine::Embedded => "embedded",
        };
        DescribeReply {
            engine: engine.to_owned(),
            format_version: Schema::VERSION.cast_signed(),
            storage_cell: self.statements.connection.settings.name.clone(),
        }
    }
}

#[async_trait]
impl Store for CqlStore {
    async fn call(&self, request: Request) -> Result<Reply, StoreError> {
        Ok(match request {
            Request::Describe(_) => Reply::Describe(self.describe()),
            Request::ReadHead(request) => Reply::Head(ReadHeadReply { head: self.head(&request.log).await? }),
            Request::CasHead(request) => Reply::CasHead(self.change_head(request).await?),
            Request::ListHeads(request) => Reply::Heads(self.heads(request).await?),
            Request::OpenSegment(request) => Reply::Segment(self.open_new(request).await?),
            Request::CasSegment(request) => Reply::Segment(self.change_segment(request).await?),
            Request::Append(request) => Reply::Segment(self.append_entries(request).await?),
            Request::ReadSegment(request) => Reply::Segment(self.segment(request).await?),
            Request::DropSegment(request) => {
                self.discard(&request.log, request.segment).await?;
                Reply::DropSegment(DropSegmentReply {})
            }
            Request::ReadCursor(request) => {
                Reply::ReadCursor(ReadCursorReply { value: self.cursor(&request.log, &request.name).await? })
            }
            Request::WriteCursor(request) => Reply::WriteCursor(WriteCursorReply {
                value: self.raise_cursor(&request.log, &request.name, request.value).await?,
            }),
            Request::Write(request) => {
                self.write_rows(request).await?;
                Reply::Write(WriteReply {})
            }
            Request::ReadRows(request) => Reply::Rows(self.rows(request).await?),
            Request::ScanRows(request) => Reply::Scan(self.scan(request).await?),
        })
    }
}

//! Transactions: etcd's requests as the store's, and the store's results as etcd's responses.

use etcd_client::proto::{
    PbCompare, PbDeleteRequest, PbDeleteResponse, PbPutRequest, PbPutResponse, PbResponseOp, PbTargetUnion,
    PbTxnOpRequest, PbTxnOpResponse, PbTxnRequest, PbTxnRequestOp, PbTxnResponse,
};
use tonic::Status;

use super::range::{self, Shape};
use super::{convert, keys, refusal};
use crate::store::{
    Compare, CompareOp, CompareTarget, Delete, DeleteResult, Op, OpResult, Put, PutLease, PutResult, PutValue, Txn,
    TxnResult,
};

/// How deep a client may nest; the store has its own bound, this one keeps parsing itself bounded.
const MAX_DEPTH: usize = 16;

/// What is needed to turn one result into its response.
enum Answer {
    Range(Shape),
    Put,
    Delete,
    Txn(Answers),
}

/// The answers to both branches of a transaction, in order.
pub(super) struct Answers {
    success: Vec<Answer>,
    failure: Vec<Answer>,
}

/// The store's transaction for a client's, with what its answer needs.
pub(super) fn parse(request: PbTxnRequest) -> Result<(Txn, Answers), Status> {
    parse_nested(request, 0)
}

fn parse_nested(request: PbTxnRequest, depth: usize) -> Result<(Txn, Answers), Status> {
    if depth > MAX_DEPTH {
        return Err(Status::invalid_argument(format!(
            "etcdserver: transactions are nested deeper than {MAX_DEPTH}: flatten them"
        )));
    }
    let compares = request.compare.into_iter().map(parse_compare).collect::<Result<Vec<_>, _>>()?;
    let (success, success_answers) = parse_ops(request.success, depth)?;
    let (failure, failure_answers) = parse_ops(request.failure, depth)?;
    Ok((Txn { compares, success, failure }, Answers { success: success_answers, failure: failure_answers }))
}

fn parse_ops(requests: Vec<PbTxnRequestOp>, depth: usize) -> Result<(Vec<Op>, Vec<Answer>), Status> {
    let mut ops = Vec::with_capacity(requests.len());
    let mut answers = Vec::with_capacity(requests.len());
    for request in requests {
        let (op, answer) = match request.request {
            Some(PbTxnOpRequest::RequestRange(request)) => {
                let (range, shape) = range::parse(&request)?;
                (Op::Range(range), Answer::Range(shape))
            }
            Some(PbTxnOpRequest::RequestPut(request)) => (Op::Put(parse_put(request)?), Answer::Put),
            Some(PbTxnOpRequest::RequestDeleteRange(request)) => (Op::Delete(parse_delete(&request)?), Answer::Delete),
            Some(PbTxnOpRequest::RequestTxn(request)) => {
                let (txn, answers) = parse_nested(request, depth + 1)?;
                (Op::Txn(txn), Answer::Txn(answers))
            }
            None => return Err(Status::invalid_argument(refusal::EMPTY_KEY)),
        };
        ops.push(op);
        answers.push(answer);
    }
    Ok((ops, answers))
}

fn parse_compare(request: PbCompare) -> Result<Compare, Status> {
    if request.key.is_empty() {
        return Err(Status::invalid_argument(refusal::EMPTY_KEY));
    }
    let op = match request.result {
        0 => CompareOp::Equal,
        1 => CompareOp::Greater,
        2 => CompareOp::Less,
        3 => CompareOp::NotEqual,
        other => return Err(Status::invalid_argument(format!("etcdserver: compare result {other} is not known"))),
    };
    let number = |union: &Option<PbTargetUnion>| match union {
        Some(
            PbTargetUnion::Version(number)
            | PbTargetUnion::CreateRevision(number)
            | PbTargetUnion::ModRevision(number)
            | PbTargetUnion::Lease(number),
        ) => *number,
        _ => 0,
    };
    let target = match (request.target, request.target_union) {
        (0, union) => CompareTarget::Version(number(&union)),
        (1, union) => CompareTarget::CreateRevision(number(&union)),
        (2, union) => CompareTarget::ModRevision(number(&union)),
        (3, Some(PbTargetUnion::Value(value))) => CompareTarget::Value(value.into()),
        (3, _) => CompareTarget::Value(bytes::Bytes::new()),
        (4, union) => CompareTarget::Lease(number(&union)),
        (other, _) => {
            return Err(Status::invalid_argument(format!("etcdserver: compare target {other} is not known")));
        }
    };
    Ok(Compare { start: keys::inner(&request.key), end: keys::inner_end(&request.range_end), op, target })
}

/// The store's put for a client's.
pub(super) fn parse_put(request: PbPutRequest) -> Result<Put, Status> {
    if request.key.is_empty() {
        return Err(Status::invalid_argument(refusal::EMPTY_KEY));
    }
    if request.ignore_value && !request.value.is_empty() {
        return Err(Status::invalid_argument(refusal::VALUE_PROVIDED));
    }
    if request.ignore_lease && request.lease != 0 {
        return Err(Status::invalid_argument(refusal::LEASE_PROVIDED));
    }
    let value = if request.ignore_value { PutValue::Keep } else { PutValue::Set(request.value.into()) };
    let lease = match request.lease {
        _ if request.ignore_lease => PutLease::Keep,
        0 => PutLease::None,
        id => PutLease::Attach(super::lease::own(id)?),
    };
    Ok(Put { key: keys::inner(&request.key), value, lease, prev_kv: request.prev_kv })
}

/// The store's deletion for a client's.
pub(super) fn parse_delete(request: &PbDeleteRequest) -> Result<Delete, Status> {
    if request.key.is_empty() {
        return Err(Status::invalid_argument(refusal::EMPTY_KEY));
    }
    let (start, end) = (keys::inner(&request.key), keys::inner_end(&request.range_end));
    Ok(Delete { start, end, prev_kv: request.prev_kv })
}

/// The response to a put.
pub(super) fn put_response(revision: i64, result: &PutResult) -> PbPutResponse {
    PbPutResponse { header: convert::header(revision), prev_kv: result.prev.as_deref().map(convert::key_value) }
}

/// The response to a deletion.
pub(super) fn delete_response(revision: i64, result: &DeleteResult) -> PbDeleteResponse {
    PbDeleteResponse {
        header: convert::header(revision),
        deleted: i64::try_from(result.deleted).unwrap_or(i64::MAX),
        prev_kvs: result.prev.iter().map(|kv| convert::key_value(kv)).collect(),
    }
}

/// The response to a transaction.
pub(super) fn response(result: TxnResult, answers: &Answers) -> PbTxnResponse {
    let revision = result.revision;
    let answers = if result.succeeded { &answers.success } else { &answers.failure };
    let responses = result.responses.into_iter().zip(answers).map(|(result, answer)| {
        let response = match (result, answer) {
            (OpResult::Range(found), Answer::Range(shape)) => Some(PbTxnOpResponse::ResponseRange(shape.answer(found))),
            (OpResult::Put(result), Answer::Put) => Some(PbTxnOpResponse::ResponsePut(put_response(revision, &result))),
            (OpResult::Delete(result), Answer::Delete) => {
                Some(PbTxnOpResponse::ResponseDeleteRange(delete_response(revision, &result)))
            }
            (OpResult::Txn(result), Answer::Txn(answers)) => {
                Some(PbTxnOpResponse::ResponseTxn(self::response(result, answers)))
            }
            // The store answers operations in their places; a mismatch cannot be told to the client in any better way.
            _ => None,
        };
        PbResponseOp { response }
    });
    PbTxnResponse { header: convert::header(revision), succeeded: result.succeeded, responses: responses.collect() }
}

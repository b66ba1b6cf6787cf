"""Golden examples: one or two messages of each kind, as the records of the contract.

Figures belong together: probabilities are the softmax of their logits, the choice and its margin
follow from them, and ``total_ms`` covers its parts.
"""

from __future__ import annotations

import msgspec

from schemas.decision import (
    Decision,
    Option,
    Refused,
    Scored,
    ScoreReply,
    ScoreRequest,
    ServedBy,
    SharedReply,
    SharedRequest,
    Timing,
    Wrapped,
)
from schemas.errors import ErrorReply, Invalid, Overloaded, body_of
from schemas.heartbeat_examples import MODEL, PROOF, PROVING, READY

__all__ = ["EXAMPLES"]

_TEAMS = (
    Option(id="mobile", description="The team that builds the phone app"),
    Option(id="web", description="The team that builds the web site"),
    Option(id="billing", description="The team that answers questions about invoices"),
)
_YES_NO = (
    Option(id="yes", description="Yes, it does"),
    Option(id="no", description="No, it does not"),
)
_TICKET = {
    "subject": "Crash",
    "text": "The app closes as soon as I open the camera.",
    "plan": "pro",
    "attachments": 2,
}

_SHARED_MODEL = msgspec.structs.replace(MODEL, serving_config="native-state-prefix-parallel-v1")
_SERVED_BY = ServedBy(instance="gpu-1", scorer="reference", proof=PROOF)
_PROMPT_VERSION = "direct-options-v1"
_PROBABILITY_STATUS = "conditional option score; uncalibrated as decision confidence"

_SCORE_REPLY = ScoreReply(
    id="ticket-4711",
    option_ids=("mobile", "web", "billing"),
    probabilities=(0.9362395518765058, 0.0466126225779739, 0.01714782554552039),
    option_logits=(21.0, 18.0, 17.0),
    input_tokens=142,
    prompt_sha256="2c26b46b68ffc68ff99b453c1d30413413422d706483bfa0f98a5e886266e7ae",
    prompt_version=_PROMPT_VERSION,
    model=MODEL,
    readout="native full-vocabulary last-position logits restricted to declared answer slots",
    probability_status=_PROBABILITY_STATUS,
    forward_seconds=0.021,
    total_seconds=0.024,
    choice="mobile",
    margin=0.8896269292985319,
    timing=Timing(
        queue_ms=3.2,
        encode_ms=1.9,
        forward_ms=24.0,
        total_ms=29.6,
        batch_rows=1,
        prefix_tokens_reused=0,
    ),
    served_by=_SERVED_BY,
)

_SHARED_REPLY = SharedReply(
    results=(
        Scored(
            id="urgent",
            option_ids=("yes", "no"),
            probabilities=(0.8807970779778823, 0.11920292202211755),
            option_logits=(19.5, 17.5),
            input_tokens=131,
            prompt_sha256="fcde2b2edba56bf408601fb721fe9b5c338d10ee429ea04fae5511b68fbf8fb9",
            prompt_version=_PROMPT_VERSION,
            model=_SHARED_MODEL,
            readout="native selected suffix-position logits",
            probability_status=_PROBABILITY_STATUS,
            choice="yes",
            margin=0.7615941559557647,
        ),
        Refused(
            id="decisions[1]",
            error=body_of(
                Invalid("Descriptions must differ.", field="decisions[1].options[1].description")
            ),
        ),
    ),
    timing=Timing(
        queue_ms=0.4,
        encode_ms=2.7,
        forward_ms=31.5,
        total_ms=35.1,
        batch_rows=1,
        prefix_tokens_reused=0,
    ),
    served_by=_SERVED_BY,
)

EXAMPLES: dict[str, dict[str, msgspec.Struct]] = {
    "score_request": {
        "": ScoreRequest(
            id="ticket-4711",
            state=_TICKET,
            question="Which team should take this ticket?",
            options=_TEAMS,
        ),
        "text": ScoreRequest(
            state="The app closes as soon as I open the camera.",
            question="Does the customer report a fault?",
            options=_YES_NO,
        ),
    },
    "score_reply": {"": _SCORE_REPLY},
    "shared_request": {
        "": SharedRequest(
            state=_TICKET,
            decisions=(
                Decision(id="urgent", question="Does it stop their work?", options=_YES_NO),
                Decision(
                    question="Does the customer ask for a refund?",
                    options=(
                        Option(id="yes", description="They do"),
                        Option(id="maybe", description="They do"),
                    ),
                ),
            ),
        ),
    },
    "shared_reply": {"": _SHARED_REPLY},
    "error_reply": {
        "": ErrorReply(
            error=body_of(
                Overloaded(
                    "The queue is full by count", limit=256, unit="requests", retry_after_ms=740
                )
            )
        ),
        "invalid": ErrorReply(
            error=body_of(
                Invalid("A description must not be blank.", field="options[1].description")
            )
        ),
    },
    "wrapped": {
        "": Wrapped(
            rule="tickets",
            subject="tickets.new",
            event=_TICKET,
            decision=msgspec.json.decode(msgspec.json.encode(_SCORE_REPLY)),
        ),
    },
    "heartbeat": {"": READY, "proving": PROVING},
}
"""Message -> variant -> record; the plain one has the empty name."""

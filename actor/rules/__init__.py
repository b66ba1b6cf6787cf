"""The rule file: decisions behind an existing event stream. Pure: no bus, no model, no clock.

``rulefile.load`` gives the rules of a file, or everything that is wrong with it. For one event,
``plan.ask`` gives the work to ask, and ``plan.decide`` what to publish once it is answered; each
gives a ``Stopped`` of ``outcomes`` instead when the event ends there.
"""

"""Broker engines behind one interface: embedded, managed mosquitto, external."""

from ispine.broker.config import BrokerConfig, Limits, Rule, User
from ispine.broker.engine import Engine, engine_for

__all__ = ["BrokerConfig", "Engine", "Limits", "Rule", "User", "engine_for"]

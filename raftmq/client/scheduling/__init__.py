"""Scheduled records as programs see them: when they are due, and the handles of those sent."""

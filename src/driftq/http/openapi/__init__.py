"""Describes both APIs as an OpenAPI document."""
